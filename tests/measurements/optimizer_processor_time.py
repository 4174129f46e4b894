"""Measure the processor time that the calling thread spends in a step of each optimizer, on ResNet-50.

On a machine that runs other programs, the time that passes mostly shows how long threads waited for a core.
The processor time of the calling thread does not contain these waits, because with GOMP_SPINCOUNT=0 a thread
sleeps while it waits for another one. It contains the work that only the calling thread does, and its part of
the work that all threads do. It does not contain the time in which threads are woken.

    python -m tests.measurements.optimizer_processor_time [--repeats 10] [--threads 1 2 4]
"""

import argparse
import os
import time

os.environ["GOMP_SPINCOUNT"] = "0"  # OpenMP reads it when torch is imported

import torch
from rich.console import Console

from hvdlab.arguments import positive
from hvdlab.bench import optimizers, ranks
from hvdlab.bench.weight_shapes import NETWORKS
from hvdlab.system.hardware import seconds_without_core


def main() -> None:
    """Print one table per number of threads, like `hvdlab bench optimizers`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=positive, default=10, help="(default: 10)")
    parser.add_argument(
        "--threads", type=positive, nargs="+", default=[1, 2, 4], help="(default: 1 2 4)"
    )
    args = parser.parse_args()
    shapes, threads = NETWORKS["resnet50"](), sorted(set(args.threads))
    waited = seconds_without_core()
    started = time.perf_counter()
    measured = optimizers.measure(shapes, args.repeats, threads, clock=time.thread_time)
    waited = (seconds_without_core() - waited) / (time.perf_counter() - started)
    common = {"network": "resnet50", "waited": waited, "keras_device": ""}
    common["device"] = ranks.device_of_torch(torch.device("cpu"))
    found = [{**common, "threads": n, "milliseconds": times} for n, times in measured.items()]
    optimizers.show(found, Console(width=100))


if __name__ == "__main__":
    main()
