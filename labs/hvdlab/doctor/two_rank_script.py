"""One all-reduce. The doctor starts it with `mpirun -np 2 python two_rank_script.py torch`.

With `gpu` as a second argument the tensors are on the device that `rank_device` chooses, as in the labs. Each
rank prints a line of JSON at every stage, so that the doctor knows how far it came.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SIZE = 100_000
PLACES = (
    0,
    1,
    SIZE - 1,
)  # elements whose sums are reported: the value of rank r is (r + 1) * place


def tell(stage: str, **found: object) -> None:
    """Print a stage as a line of JSON, with other facts."""
    # One write, with its newline: lines of several ranks must not mix.
    sys.stdout.write(json.dumps({"process": os.getpid(), "stage": stage, **found}) + "\n")
    sys.stdout.flush()


def with_torch(on_gpu: bool) -> tuple[ModuleType, np.ndarray]:
    """Return horovod.torch and the result of the all-reduce."""
    import horovod.torch as hvd
    from torch import arange, float64

    begin(hvd)
    device, options = "cpu", {}
    if on_gpu:
        from hvdlab.torch.device import rank_device

        mine = rank_device(hvd)
        device, options = mine.device, {"compression": mine.compression}
        tell("placed", device=str(device), sharing=mine.ranks, direct=mine.direct)
    numbers = arange(SIZE, dtype=float64, device=device) * (hvd.rank() + 1)
    return hvd, hvd.allreduce(numbers, op=hvd.Sum, **options).cpu().numpy()


def with_tensorflow(on_gpu: bool) -> tuple[ModuleType, np.ndarray]:
    """Return horovod.tensorflow and the result of the all-reduce."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    begin(hvd)
    device, options = "CPU:0", {}
    if on_gpu:
        from hvdlab.keras.device import rank_device

        mine = rank_device(hvd)
        device, options = "GPU:0" if mine.gpu else "CPU:0", {"device_dense": mine.device_dense}
        tell("placed", device=mine.gpu or "cpu", sharing=mine.ranks, direct=mine.direct)
    with tf.device(device):
        numbers = tf.range(SIZE, dtype=tf.float64) * (hvd.rank() + 1)
        return hvd, hvd.allreduce(numbers, op=hvd.Sum, **options).numpy()


def begin(hvd: ModuleType) -> None:
    """Initialize Horovod and report it."""
    tell("imported Horovod")
    hvd.init()
    tell("joined", rank=hvd.rank(), size=hvd.size())


def main(framework: str, device: str = "cpu") -> None:
    """Run the all-reduce and report its result.

    Args:
        framework: "torch" or "tensorflow".
        device: "cpu" (default) or "gpu".
    """
    tell("started")
    work = {"torch": with_torch, "tensorflow": with_tensorflow}[framework]
    hvd, total = work(on_gpu=device == "gpu")
    tell("summed", sums=[float(total[i]) for i in PLACES])
    hvd.shutdown()
    tell("ended")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # where hvdlab is, in place of this folder
    main(*sys.argv[1:])
