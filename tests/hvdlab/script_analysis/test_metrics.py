"""Metrics of a loop of which a script combines only some over the ranks."""

import pytest

from hvdlab.script_analysis.metrics import not_combined
from hvdlab.script_analysis.script import Script

LOOP = """\
def test():
    loss, correct, images = 0.0, 0, 0
    for x, y in loader:
        out = model(x)
        loss += criterion(out, y).item()
        correct += int((out.argmax(1) == y).sum())
        images += len(y)
"""


@pytest.mark.parametrize(
    "below, wanted",
    [
        ("loss = mean(loss)\n print(loss, correct)", [("correct", 10)]),
        ("loss /= len(loader)\n acc = correct / images\n loss = mean(loss)\n return loss, acc",
         [("correct", 12), ("images", 12)]),
        ("loss = mean(loss)\n correct = mean(correct)\n print(loss, correct)", []),
        ("both = torch.tensor([loss, correct])\n both = hvd.allreduce(both)\n print(both)", []),
        ("print(loss, correct)", []),  # the rule for no collective at all
        ("loss = mean(loss)\n print(loss)", []),
        ("loss = mean(loss)\n print(hvd.rank(), correct)", []),  # that of each rank
    ],
)  # fmt: skip
def test_a_metric_of_one_rank_next_to_one_of_all_ranks(below, wanted):
    source = f"import horovod.torch as hvd\n{LOOP}".replace("    ", " ") + f" {below}"
    found = not_combined(Script(source.encode()), {"allreduce", "mean"})
    assert [(name, line) for loop, name, line in found if loop == 4] == wanted


def test_sums_of_combined_values_are_combined():
    source = "for x in data:\n n = mean(x)\n a += n\n b += mean(x)\n c += x\nprint(a, b, mean(c))"
    assert list(not_combined(Script(source.encode()), {"mean"})) == []
