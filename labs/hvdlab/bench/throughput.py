"""Images/s at 1 and 2 ranks: Horovod with torch and Keras beside torch DDP.

Each variant is started anew as its own ranks (`python -m hvdlab.bench.throughput VARIANT STEPS
BATCH_SIZE`), one thread each, in turns, so that a machine that becomes slower does so for all.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from hvdlab.bench import ranks, results

VARIANTS = ("horovod-torch", "ddp-torch", "horovod-keras")

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
    """CIFAR-10-shaped noise: speed does not depend on what the images show. All batches are full."""
    import numpy as np

    from hvdlab.data import Batches

    rng = np.random.default_rng(0)
    together = batch_size * size
    images = rng.integers(0, 256, (max(20_000 // together, 1) * together, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, len(images))
    return Batches(images, labels, batch_size, rank=rank, size=size, augment=True)


# --- all ranks --------------------------------------------------------------------------------------


def throughput(
    rank_counts=(1, 2), repeats: int = 5, steps: int = 60, batch_size: int = 64, tell=print
) -> dict:
    """Images/s of every variant at every number of ranks, `repeats` times in turns.

    Returns a dict variant -> ranks -> list of images/s.
    """
    rates: dict = {variant: {n: [] for n in rank_counts} for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for variant in VARIANTS:
                for n in rank_counts:
                    store = f"{folder}/{variant}-{n}-{repeat}"
                    told = ranks.run(
                        __name__, n, variant, steps, batch_size, HVDLAB_BENCH_STORE=store
                    )
                    rate = sum(rank["images_per_second"] for rank in told)
                    rates[variant][n].append(rate)
                    tell(
                        f"round {repeat + 1} of {repeats}: {variant}, {n} ranks: {rate:,.0f} images/s"
                    )
    return rates


def show(rates: dict, batch_size: int, console: Console) -> None:
    """Medians with their range, efficiency, and the ratio to DDP of the same round."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
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
                *results.median_and_range(values, ",.0f"),
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
    ranks.tell({"rank": rank, "images_per_second": rate})


if __name__ == "__main__":
    main(*sys.argv[1:])
