"""Benchmarks: what this machine does, side by side with a peer in the same run.

    hvdlab bench throughput        images/s at 1 and 2 ranks: Horovod with torch and Keras, torch DDP

Each variant is started anew as its own ranks (`python -m hvdlab.bench VARIANT STEPS BATCH_SIZE`),
one thread each, in turns, so that a machine that becomes slower does so for all.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from hvdlab import launch

VARIANTS = ("horovod-torch", "ddp-torch", "horovod-keras")
LIMIT_SECONDS = 300


class BenchFailed(Exception):
    """A variant did not run: one sentence with its name and its last words."""


# --- one rank ---------------------------------------------------------------------------------------


def horovod_torch(steps: int, batch_size: int) -> tuple[int, float]:
    import horovod.torch as hvd

    from hvdlab.torch.throughput import measure

    def distribute(model, optimizer):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())

    hvd.init()
    batches = random_batches(batch_size, hvd.rank(), hvd.size())
    return hvd.rank(), measure(batches, hvd.barrier, steps=steps, distribute=distribute)[1]


def ddp_torch(steps: int, batch_size: int) -> tuple[int, float]:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from hvdlab.record import launched_rank
    from hvdlab.torch.throughput import measure

    rank, size = launched_rank()
    store = dist.FileStore(os.environ["HVDLAB_BENCH_STORE"], size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    batches = random_batches(batch_size, rank, size)
    rate = measure(
        batches,
        dist.barrier,
        steps=steps,
        distribute=lambda model, optimizer: (DistributedDataParallel(model), optimizer),
    )[1]
    dist.destroy_process_group()
    return rank, rate


def horovod_keras(steps: int, batch_size: int) -> tuple[int, float]:
    import hvdlab.keras.horovod as hvd
    from hvdlab.keras.throughput import measure

    hvd.init()
    batches = random_batches(batch_size, hvd.rank(), hvd.size())

    def meet():
        hvd.allreduce(0.0)

    return hvd.rank(), measure(batches, meet, steps=steps, distribute=hvd.DistributedOptimizer)[1]


def random_batches(batch_size: int, rank: int, size: int):
    """CIFAR-10-shaped noise: speed does not depend on what the images show."""
    import numpy as np

    from hvdlab.data import Batches

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (20_000, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, len(images))
    return Batches(images, labels, batch_size, rank=rank, size=size, augment=True)


# --- all ranks --------------------------------------------------------------------------------------


def run(variant: str, ranks: int, steps: int, batch_size: int, store: str) -> float:
    """Start `variant` on `ranks` processes; return images/s of all of them together."""
    mpirun, _, count, python = launch.command(ranks, "")[:4]
    environment = {**os.environ, **launch.environment(max(ranks, 2)), "HVDLAB_BENCH_STORE": store}
    environment["OMP_NUM_THREADS"] = "1"  # also for one rank: two threads would fake its speed
    environment["TF_NUM_INTRAOP_THREADS"] = "1"
    environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
    try:
        process = subprocess.run(
            [mpirun, "-np", count, python, "-m", __name__, variant, str(steps), str(batch_size)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{variant} on {ranks} ranks took over {LIMIT_SECONDS} s") from None
    lines = [line for line in process.stdout.splitlines() if line.startswith("{")]
    if process.returncode or len(lines) != ranks:
        last = (process.stderr.strip() or "nothing printed").splitlines()[-1]
        raise BenchFailed(f"{variant} on {ranks} ranks failed: {last}")
    return sum(json.loads(line)["images_per_second"] for line in lines)


def throughput(
    rank_counts=(1, 2), repeats: int = 5, steps: int = 60, batch_size: int = 64, tell=print
) -> dict:
    """Images/s of every variant at every number of ranks, `repeats` times in turns.

    Returns a dict variant -> ranks -> list of images/s.
    """
    import tempfile

    rates: dict = {variant: {n: [] for n in rank_counts} for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for variant in VARIANTS:
                for n in rank_counts:
                    store = f"{folder}/{variant}-{n}-{repeat}"
                    rate = run(variant, n, steps, batch_size, store)
                    rates[variant][n].append(rate)
                    tell(
                        f"round {repeat + 1} of {repeats}: {variant}, {n} ranks: {rate:,.0f} images/s"
                    )
    return rates


def show(rates: dict, batch_size: int, console: Console) -> None:
    """Medians with their range, efficiency, and the ratio to DDP of the same round."""
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for title in ("variant", "ranks", "images/s", "min .. max", "efficiency", "to ddp-torch"):
        table.add_column(title, justify="left" if title == "variant" else "right")
    for variant, by_ranks in rates.items():
        for n, values in by_ranks.items():
            one = by_ranks[min(by_ranks)]
            efficiency = statistics.median(v / o / n for v, o in zip(values, one, strict=True))
            peers = rates["ddp-torch"][n]
            to_ddp = statistics.median(v / p for v, p in zip(values, peers, strict=True))
            table.add_row(
                variant,
                str(n),
                f"{statistics.median(values):,.0f}",
                f"{min(values):,.0f} .. {max(values):,.0f}",
                f"{efficiency:.2f}",
                f"{to_ddp:.2f}",
            )
    rounds = len(next(iter(next(iter(rates.values())).values())))
    console.print(f"Medians of {rounds} rounds, batch {batch_size} a rank, one thread a rank")
    console.print(table)


def main(variant: str, steps: str, batch_size: str) -> None:
    measure: dict[str, Callable] = {
        "horovod-torch": horovod_torch,
        "ddp-torch": ddp_torch,
        "horovod-keras": horovod_keras,
    }
    rank, rate = measure[variant](int(steps), int(batch_size))
    # One write a rank, with its newline: lines of several ranks must not mix.
    sys.stdout.write(json.dumps({"rank": rank, "images_per_second": rate}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
