"""What `hvdlab check` notes of a rank: its loops, the length of a fit, the steps of an optimizer."""

import json
import subprocess
import sys
import types

import numpy as np
import pytest

from hvdlab.check import instrument
from hvdlab.check.events import Watch
from hvdlab.check.watch_fit import _steps


@pytest.mark.parametrize(
    "inner",
    [
        "for i in range(20):\n        step()",
        "i = 0\n    while i < 20:\n        step()\n        i += 1",
        "while True:\n        step()",
    ],
)
@pytest.mark.parametrize("outer", ["for epoch in range(50):", "while len(rounds) < 50:"])
def test_loops_that_train_are_cut_and_those_around_them_after_two_rounds(tmp_path, inner, outer):
    source = f"rounds = []\n{outer}\n    rounds.append(1)\n    {inner}\n"
    watch = Watch(tmp_path, "script", rank=0, size=1, limit=8)
    names = {instrument.WATCH: watch, "step": watch.step}
    code = compile(instrument.instrument(source, "script"), "script", "exec")
    types.FunctionType(code, names)()
    assert (len(names["rounds"]), watch.steps) == (2, 16)


@pytest.mark.parametrize(
    "x, batches",
    [
        (np.zeros((70, 3)), 3),
        ([np.zeros((70, 3)), np.zeros((70, 1))], 3),
        ({"image": np.zeros((70, 3)), "age": np.zeros((70, 1))}, 3),
        ((part for part in "ab"), None),
    ],
)
def test_the_batches_of_a_fit_are_those_of_its_first_input(x, batches):
    assert _steps({"steps_per_epoch": None, "x": x, "batch_size": 32}) == batches


PLAIN = """\
import sys
from pathlib import Path
import torch
from hvdlab.check import watch_torch
from hvdlab.check.events import Watch

watch_torch.watch(torch, Watch(Path(sys.argv[1]), __file__, rank=0, size=1, limit=8))

class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": None})

    def step(self):
        pass

norm = torch.nn.BatchNorm1d(1, momentum=None)  # keeps the mean of all batches
optimizer = Plain(norm.parameters())
for mean in range(1, 5):
    norm(mean + torch.tensor([[-1.0], [1.0]]))
    optimizer.step()
"""


def test_an_optimizer_without_a_rate_and_a_cumulative_mean_are_noted(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "script.py"
    script.write_text(PLAIN)
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=120)
    lines = (tmp_path / "rank-0.jsonl").read_text().splitlines()
    steps = [event for event in map(json.loads, lines) if event["kind"] == "step"]
    assert [step["rate"] for step in steps] == [None] * 4
    (norm,) = steps[-1]["statistics"]
    assert norm["mean"] == [2.5] and norm["filled"] == 1
