"""`hvdlab run --report` counts of a script what the script counts itself."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from check_cases import CORRECT

from hvdlab.check.rank_report import report_of, rows
from hvdlab.trace import records

SCRIPT = """
import json, sys
import horovod.torch as hvd
import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

hvd.init()
torch.manual_seed(hvd.rank())
draw = torch.Generator().manual_seed(0)
images = torch.randn(301, 1, 6, 6, generator=draw)
labels = (images.sum(dim=(1, 2, 3)) > 0).long()
data = TensorDataset(images, labels)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if sys.argv[1] == "converted":
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    sampler = DistributedSampler(data, hvd.size(), hvd.rank())
else:
    sampler = torch.utils.data.RandomSampler(data)
for epoch in range(3):
    if sys.argv[1] == "converted":
        sampler.set_epoch(epoch)
    losses, right, read = [], 0, []
    for x, y in DataLoader(data, 32, sampler=sampler):
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        (loss * 8 / 8).backward()
        optimizer.step()
        losses.append(loss.item() * len(y))
        right += (scores.argmax(1) == y).sum().item()
        read += [row.numpy().tobytes().hex()[:16] for row in x]
    model.eval()
    held_out = sum((model(x).argmax(1) == y).sum().item() for x, y in [(images[:50], labels[:50])])
    F.cross_entropy(model(images[:50]), labels[:50])  # evaluates without no_grad
    model.train()
weights = [p.detach().numpy().tolist() for p in model.parameters()]
with open(f"rank-{hvd.rank()}.json", "w") as file:
    json.dump({"read": read, "steps": len(losses), "loss": sum(losses) / len(read), "held_out": held_out / 50,
               "weights": weights}, file)
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("kind, models", [("serial", 2), ("converted", 1)])
def test_the_report_has_the_numbers_that_the_script_counts_itself(tmp_path, kind, models):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hvdlab.cli", "run", "-np", "2", "--report", "train.py", kind]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    own = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    first = set(own[0]["read"])
    table = [line.split("│")[1:-1] for line in ended.stdout.splitlines() if line.startswith("│")]
    for rank, (row, one) in enumerate(zip(table, own, strict=True)):
        weights = hashlib.sha256()
        for array in one["weights"]:
            array = np.array(array, np.float32)
            weights.update(str(array.shape).encode() + array.tobytes())
        overlap = len(set(one["read"]) & first) / len(set(one["read"]))
        expected = [rank, weights.hexdigest()[:8], len(one["read"]), f"{overlap:.0%}", one["steps"]]
        expected += [f"{one['loss']:.4f}", f"{one['held_out']:.4f}"]
        assert [cell.strip() for cell in row] == [*map(str, expected)]
    assert len({row[1] for row in table}) == models
    says = "one network" if models == 1 else "2 networks"
    assert says in ended.stdout


def report(**fields):
    given = {"weights": "a", "epochs": 2, "steps_of_epoch": 1, "examples": 2, "inputs": [1, 2]}
    return records.Report(**(given | fields))


def test_inputs_that_never_come_again_have_no_overlap():
    changed = rows({0: [report()], 1: [report(inputs=[3, 4])]})
    assert [row.overlap for row in changed] == [None, None]
    same = rows({0: [report(again=True)], 1: [report(inputs=[2, 4])]})
    assert [row.overlap for row in same] == [1.0, 0.5]


def test_a_rank_without_evaluation_makes_all_ranks_show_the_accuracy_of_training():
    found = rows({0: [report(accuracy=0.5, held_out=0.9)], 1: [report(accuracy=0.6)]})
    assert [row.accuracy for row in found] == [0.5, 0.6]


def test_a_rank_without_a_step_has_no_row():
    assert [row.rank for row in rows({0: [report(epochs=0)], 1: [report()]})] == [1]


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["keras_fit_arrays", "keras_tape", "legacy_keras_callbacks"])
def test_two_ranks_of_a_correct_script_in_keras_have_one_network(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = report_of(CORRECT[name], ranks=2)
    assert first.weights == second.weights
    assert first.overlap == 1 and second.overlap < 0.01  # an odd number of examples is padded
    assert first.examples and first.steps == second.steps
