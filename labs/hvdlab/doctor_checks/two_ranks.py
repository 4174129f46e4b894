"""What the doctor starts with `mpirun -np 2 python two_ranks.py torch`: one all-reduce.

A line of JSON at every step says how far a rank came.
"""

import json
import os
import sys

SIZE = 100_000
PLACES = (0, 1, SIZE - 1)  # whose sums are reported: rank r brings (r + 1) * place


def tell(stage: str, **found) -> None:
    # One write, with its newline: lines of several ranks must not mix.
    sys.stdout.write(json.dumps({"process": os.getpid(), "stage": stage, **found}) + "\n")
    sys.stdout.flush()


def main(framework: str) -> None:
    tell("started")
    if framework == "torch":
        import horovod.torch as hvd
        from torch import arange, float64

        numbers = arange(SIZE, dtype=float64)
    else:
        import horovod.tensorflow as hvd
        from tensorflow import float64, range

        numbers = range(SIZE, dtype=float64)
    tell("imported Horovod")
    hvd.init()
    tell("joined", rank=hvd.rank(), size=hvd.size())
    total = hvd.allreduce(numbers * (hvd.rank() + 1), op=hvd.Sum).numpy()
    tell("summed", sums=[float(total[i]) for i in PLACES])
    hvd.shutdown()
    tell("ended")


if __name__ == "__main__":
    main(sys.argv[1])
