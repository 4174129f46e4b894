"""Images/s at 1 and 2 ranks: Horovod with torch and Keras, torch DDP, and the limit of this machine.

The limit is what ranks that exchange nothing reach at once: they share the memory and the clock of a
processor, and its cores with whatever else runs. What is left to it is what the exchange costs.

Each variant is started as ranks of its own (`python -m hvdlab.bench.throughput VARIANT STEPS BATCH_SIZE
NETWORK EXCHANGE`), one thread each, in turns, so that a machine that becomes slower does so for all.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from hvdlab.assessment_networks import ASSESSMENT_NET
from hvdlab.bench import ranks, results

EPILOG = """\
examples:
  hvdlab bench throughput --repeats 5 --json throughput.json
  hvdlab bench throughput --device gpu --network wrn-16-10 --batch-size 256
"""
LIMITS = {  # variant -> the same training without an exchange
    "horovod-torch": "alone-torch",
    "ddp-torch": "alone-torch",
    "horovod-keras": "alone-keras",
}
VARIANTS = ("alone-torch", "horovod-torch", "ddp-torch", "alone-keras", "horovod-keras")
RANK_COUNTS = (1, 2)

# --- one rank ---------------------------------------------------------------------------------------


def alone_torch(comm, batches, steps: int, network: str, exchange: str):
    """No Horovod at all."""
    from hvdlab.torch.device import choose

    mine = choose(comm.rank, comm.allgather, nccl=0)
    return trained_by_torch(comm, batches, steps, network, mine.device, lambda *both: both)


def horovod_torch(comm, batches, steps: int, network: str, exchange: str):
    import horovod.torch as hvd

    from hvdlab.bench.gradient_exchanges import EXCHANGES
    from hvdlab.torch.device import rank_device

    hvd.init()
    mine = rank_device(hvd)

    def distribute(model, optimizer):  # the weights are equal already, by the seed
        return model, EXCHANGES[exchange](hvd, model, optimizer, mine.compression)

    return trained_by_torch(comm, batches, steps, network, mine.device, distribute)


def ddp_torch(comm, batches, steps: int, network: str, exchange: str):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from hvdlab.torch.device import choose
    from hvdlab.torch.process_group import nccl_version

    mine = choose(comm.rank, comm.allgather, nccl_version())
    store = dist.FileStore(os.environ["HVDLAB_BENCH_STORE"], comm.size)
    dist.init_process_group(mine.backend, store=store, rank=comm.rank, world_size=comm.size)

    def distribute(model, optimizer):
        return DistributedDataParallel(model), optimizer

    measured = trained_by_torch(comm, batches, steps, network, mine.device, distribute)
    dist.destroy_process_group()
    return measured


def trained_by_torch(comm, batches, steps, network, device, distribute) -> tuple[float, str]:
    import torch

    from hvdlab.torch.precision import use_fast_kernels
    from hvdlab.torch.throughput import measure

    torch.manual_seed(1)
    use_fast_kernels()
    rate = measure(
        batches, comm.Barrier, steps=steps, distribute=distribute, device=device, network=network
    )[1]
    return rate, ranks.device_of_torch(device)


def alone_keras(comm, batches, steps: int, network: str, exchange: str):
    from hvdlab.keras.throughput import measure

    rate = measure(batches, comm.Barrier, steps=steps, network=network)[1]
    return rate, ranks.device_of_tensorflow()


def horovod_keras(comm, batches, steps: int, network: str, exchange: str):
    import hvdlab.keras.horovod as hvd
    from hvdlab.keras.device import rank_device
    from hvdlab.keras.throughput import measure

    hvd.init()
    mine = rank_device(hvd)

    def distribute(optimizer):
        return hvd.DistributedOptimizer(optimizer, device_dense=mine.device_dense)

    rate = measure(batches, comm.Barrier, steps=steps, distribute=distribute, network=network)[1]
    return rate, ranks.device_of_tensorflow()


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
    rank_counts=RANK_COUNTS,
    repeats: int = 5,
    steps: int = 60,
    batch_size: int = 64,
    tell=print,
    network: str = ASSESSMENT_NET,
    device: str = "cpu",
    variants=VARIANTS,
) -> dict:
    """Images/s of every variant at every number of ranks, `repeats` times in turns.

    Returns a dict variant -> {"device": its name, "rates": ranks -> list of images/s}.
    """
    found: dict = {
        variant: {"device": "", "rates": {n: [] for n in rank_counts}} for variant in variants
    }
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for variant in variants:
                for n in rank_counts:
                    store = f"{folder}/{variant}-{n}-{repeat}"
                    told = ranks.run(
                        __name__, n, variant, steps, batch_size, network,
                        device=device, HVDLAB_BENCH_STORE=store,
                    )  # fmt: skip
                    rate = sum(rank["images_per_second"] for rank in told)
                    found[variant]["rates"][n].append(rate)
                    found[variant]["device"] = told[0]["device"]
                    tell(
                        f"round {repeat + 1} of {repeats}: {variant}, {n} ranks: {rate:,.0f} images/s"
                    )
    return found


def show(found: dict, batch_size: int, console: Console, network: str = ASSESSMENT_NET) -> None:
    """Medians with their range; ratios are medians of the ratios of one round."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    titles = "variant", "ranks", "images/s", "min .. max", "efficiency", "of limit", "to ddp-torch"
    for title in titles:
        table.add_column(title, justify="left" if title == "variant" else "right")
    for variant, measured in found.items():
        for n, values in measured["rates"].items():
            one = measured["rates"][min(measured["rates"])]
            efficiency = statistics.median(v / o / n for v, o in zip(values, one, strict=True))
            table.add_row(
                variant,
                str(n),
                *results.median_and_range(values, ",.0f"),
                f"{efficiency:.2f}",
                ratio(values, found.get(LIMITS.get(variant)), n),
                ratio(values, found.get("ddp-torch"), n),
            )
    rounds = len(next(iter(next(iter(found.values()))["rates"].values())))
    console.print(
        f"Medians of {rounds} rounds, {network}, batch {batch_size} a rank, one thread a rank"
    )
    console.print(results.devices(found))
    console.print("of limit: images/s over those of as many ranks that exchange nothing")
    console.print(table)


def ratio(values: list[float], peer: dict | None, n: int) -> str:
    """The median of the ratios of one round to a peer's at as many ranks; "" without a peer."""
    if peer is None:
        return ""
    return f"{statistics.median(v / p for v, p in zip(values, peer['rates'][n], strict=True)):.2f}"


# --- command ----------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    results.add_rounds(parser, 5)
    results.add_steps(parser)
    results.add_network(parser)
    results.add_device(parser)
    parser.add_argument(
        "--variants", choices=VARIANTS, nargs="+", default=VARIANTS, metavar="VARIANT",
        help=f"of {', '.join(VARIANTS)} (default: all)",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    args.device = ranks.chosen_device(args.device, max(RANK_COUNTS))
    found = throughput(
        RANK_COUNTS, args.repeats, args.steps, args.batch_size, results.tell, args.network,
        args.device, tuple(dict.fromkeys(args.variants)),
    )  # fmt: skip
    results.keep(args, found)
    show(found, args.batch_size, Console(), args.network)
    return 0


def one_run(
    variant: str,
    steps: str,
    batch_size: str,
    network: str = ASSESSMENT_NET,
    exchange: str = "one by one",
) -> None:
    """One rank: train for some steps, and tell the speed."""
    measure: dict[str, Callable] = {
        "alone-torch": alone_torch,
        "horovod-torch": horovod_torch,
        "ddp-torch": ddp_torch,
        "alone-keras": alone_keras,
        "horovod-keras": horovod_keras,
    }
    measure_variant = measure[variant]
    comm = ranks.communicator()
    batches = random_batches(int(batch_size), comm.rank, comm.size)
    rate, device = measure_variant(comm, batches, int(steps), network, exchange)
    ranks.tell({"rank": comm.rank, "images_per_second": rate, "device": device})


if __name__ == "__main__":
    one_run(*sys.argv[1:])
