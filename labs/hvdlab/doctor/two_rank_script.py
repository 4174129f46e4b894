"""What the doctor starts with `mpirun -np 2 python two_rank_script.py torch`: one all-reduce.

With `gpu` as a second argument the tensors are on the device that `rank_device` chooses, as in the labs. A
line of JSON at every step says how far a rank came.
"""

import json
import os
import sys
from pathlib import Path

SIZE = 100_000
PLACES = (0, 1, SIZE - 1)  # whose sums are reported: rank r brings (r + 1) * place


def tell(stage: str, **found) -> None:
    # One write, with its newline: lines of several ranks must not mix.
    sys.stdout.write(json.dumps({"process": os.getpid(), "stage": stage, **found}) + "\n")
    sys.stdout.flush()


def with_torch(on_gpu: bool):
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


def with_tensorflow(on_gpu: bool):
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


def begin(hvd) -> None:
    tell("imported Horovod")
    hvd.init()
    tell("joined", rank=hvd.rank(), size=hvd.size())


def main(framework: str, device: str = "cpu") -> None:
    tell("started")
    work = {"torch": with_torch, "tensorflow": with_tensorflow}[framework]
    hvd, total = work(on_gpu=device == "gpu")
    tell("summed", sums=[float(total[i]) for i in PLACES])
    hvd.shutdown()
    tell("ended")


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])  # where hvdlab is, in place of this folder
    main(*sys.argv[1:])
