"""Exercise of lab 5: a training script for two ranks, from an empty file, measured from outside."""

from pathlib import Path

from hvdlab.check.rank_report import Row
from hvdlab.course.experiment import QUICK
from hvdlab.exercises import NotRun, NotYet, exercise, right
from hvdlab.exercises.lab05_transfer import problem_of, reports_of

EXAMPLES, LARGEST_LOSS = 2048, 0.3
SCRIPT = """\
import horovod.torch as hvd
import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def data():
    points = np.random.default_rng(1).normal(size=(2048, 16)).astype("float32")
    return points, (points**2).sum(1) > 15.5


hvd.init()
points, labels = map(torch.from_numpy, data())
train = TensorDataset(points, labels.long())
sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(train, 32, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

for epoch in range(6):
    sampler.set_epoch(epoch)
    for batch, wanted in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), wanted)
        loss.backward()
        optimizer.step()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.3f}")
"""


@exercise
def check_own_script(script: str | Path) -> None:
    """Demand of a script what its rank report and `hvdlab check` show on two ranks.

    Args:
        script: the path of the learner's script.
    """
    path = Path(script).absolute()
    if not path.exists():
        raise NotYet(f"there is no file {path.name}: write your script there.")
    if QUICK:
        raise NotRun(path.name)
    (rows,) = reports_of(path.name, path, [()])
    if problem := problem_of(rows) or _missed(rows):
        raise NotYet(f"{path.name}: {problem}")
    right("one network on two ranks, which read every example once per epoch.")


def _missed(rows: list[Row]) -> str:
    """Return which point of the rubric the rank report of two ranks misses, or ""."""
    read = [row.examples for row in rows]
    if None in read or sum(read) != EXAMPLES:
        counts = " and ".join("an unknown number of" if n is None else f"{n:,}" for n in read)
        return (
            f"in the last epoch the ranks read {counts} examples. Together they must read each of the "
            f"{EXAMPLES:,} examples once."
        )
    if rows[1].overlap:
        return f"rank 1 reads {rows[1].overlap:.1%} of its examples from the part of rank 0."
    if rows[0].loss is None or rows[0].loss >= LARGEST_LOSS:
        loss = "unknown" if rows[0].loss is None else f"{rows[0].loss:.3f}"
        return f"the training loss of the last epoch is {loss}, and must be below {LARGEST_LOSS}."
    return ""
