"""The first exercise of lab 1: one edit makes one training of two ranks."""

from math import isclose
from pathlib import Path

from hvdlab.check import rank_report
from hvdlab.check.command import CheckError, check
from hvdlab.course.experiment import LABS
from hvdlab.exercises import NotYet, exercise, right
from hvdlab.exercises.harness.found_mistake import told
from hvdlab.exercises.harness.script_edits import ScriptEdits
from hvdlab.launch import LaunchError
from hvdlab.trace import records

RATE = 0.05  # learning rate of the serial script

# One core for each rank, as each rank of a cluster has one GPU. The scripts choose no GPU.
ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
}
TORCH = """\
@@ horovod
+import horovod.torch as hvd
 import torch
@@ horovod
+hvd.init()  # find the other ranks
 data = load_fashion_mnist()
-images = torch.tensor(data.train_images[:8192]).permute(0, 3, 1, 2) / 255
-labels = torch.tensor(data.train_labels[:8192]).long()
+mine = slice(hvd.rank(), 8192, hvd.size())  # every second image, if there are two ranks
+images = torch.tensor(data.train_images[mine]).permute(0, 3, 1, 2) / 255
+labels = torch.tensor(data.train_labels[mine]).long()
@@ horovod
-optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
+optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
+optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # averages gradients
+hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # all begin with the weights of rank 0
"""
KERAS = """\
@@ horovod
 from hvdlab.data import load_fashion_mnist
+import hvdlab.keras.horovod as hvd

+hvd.init()  # find the other ranks
 data = load_fashion_mnist()
-images, labels = data.train_images[:8192] / 255, data.train_labels[:8192]
+mine = slice(hvd.rank(), 8192, hvd.size())  # every second image, if there are two ranks
+images, labels = data.train_images[mine] / 255, data.train_labels[mine]
@@ horovod
-optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
+optimizer = keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9)
+optimizer = hvd.DistributedOptimizer(optimizer)  # averages gradients
@@ horovod
-callbacks = []
+callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]  # all begin with the weights of rank 0
"""
EDITS = {
    name: ScriptEdits(LABS / f"first_{name}.py", ("horovod",), diff)
    for name, diff in (("torch", TORCH), ("keras", KERAS))
}


@exercise
def check_first_script(script: str | Path) -> None:
    """Demand that two ranks train one network, each with its own half of the images, at the doubled rate.

    Args:
        script: the path of the script.
    """
    try:
        trace = rank_report.trace_of(script, ranks=2, **ONE_CORE)
    except LaunchError as error:
        raise NotYet(str(error)) from None
    rows = rank_report.rows(trace)
    rank_report.show(rows, 2)
    one = len(rows) == 2 and len({row.weights for row in rows}) == 1
    if not (one and rows[1].overlap == 0):
        raise NotYet(_cause(Path(script)) or _seen(rows))
    rates = _learning_rates(trace)
    if rates and not isclose(max(rates), 2 * RATE, rel_tol=1e-3):
        raise NotYet(
            f"the learning rate of rank 0 is {max(rates):g}, and with two ranks it should be {2 * RATE:g}. "
            f"Multiply {RATE:g} by hvd.size()."
        )
    halves = " and ".join(f"{row.examples:,}" for row in rows)
    right(f"two ranks trained one network, and read {halves} images in each epoch.")


def _learning_rates(trace: records.Trace) -> list[float]:
    """Return the learning rates of rank 0, twice if its optimizer adds the gradients of two ranks."""
    adds = any(isinstance(event, records.Wrap) and event.reduces == "Sum" for event in trace[0])
    rates = [event.rate for event in trace[0] if isinstance(event, records.Step)]
    return [rate * (2 if adds else 1) for rate in rates if rate is not None]


def _cause(script: Path) -> str:
    """Return the first mistake that `hvdlab check` finds in the script, or ""."""
    try:
        found = check(script, **ONE_CORE).findings
    except CheckError as error:
        return str(error)
    return told(found[0]) if found else ""


def _seen(rows: list[rank_report.Row]) -> str:
    """Return what the report says against the script."""
    if len(rows) < 2:
        return "one of the two ranks made no training step."
    if len({row.weights for row in rows}) > 1:
        return "the weights of the two ranks differ, so they trained two networks."
    return "rank 1 reads images that rank 0 reads, too: give each rank its own half."
