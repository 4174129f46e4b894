"""Measure images/s of 1 and 2 ranks: Horovod with PyTorch and Keras, PyTorch's DDP, and the limit.

The limit is the speed of ranks that train at the same time without an exchange: they share the memory and
the clock of a processor, and its cores with all other programs. The difference to the limit is the cost of
the exchange.

Each variant is started as its own ranks (`python -m hvdlab.bench.throughput VARIANT STEPS BATCH_SIZE NETWORK
EXCHANGE`) with one thread each. The variants take turns, so that a machine that becomes slower slows down
all of them.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from hvdlab.assessment_networks import ASSESSMENT_NET
from hvdlab.bench import ranks, results

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

    from hvdlab.data import Batches

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
RANK_COUNTS = (1, 2)
Measured = tuple[float, str]  # images/s of this rank, and the name of its device

# --- one rank: train for some steps and return the speed --------------------------------------------


def alone_torch(comm: "MPI.Comm", batches: "Batches", options: dict, exchange: str) -> Measured:
    """Train with PyTorch, without Horovod in the process."""
    from hvdlab.torch.device import choose

    mine = choose(comm.rank, comm.allgather, nccl=0)
    return trained_by_torch(comm, batches, options, mine.device, lambda *both: both)


def horovod_torch(comm: "MPI.Comm", batches: "Batches", options: dict, exchange: str) -> Measured:
    """Train with PyTorch; Horovod sends the gradients by the method `exchange`."""
    import horovod.torch as hvd

    from hvdlab.bench.gradient_exchanges import EXCHANGES
    from hvdlab.torch.device import rank_device

    hvd.init()
    mine = rank_device(hvd)

    # The weights are not broadcast, because the seed makes them equal.
    def distribute(model: "torch.nn.Module", optimizer: "torch.optim.Optimizer") -> tuple:
        return model, EXCHANGES[exchange](hvd, model, optimizer, mine.compression)

    return trained_by_torch(comm, batches, options, mine.device, distribute)


def ddp_torch(comm: "MPI.Comm", batches: "Batches", options: dict, exchange: str) -> Measured:
    """Train with PyTorch's DistributedDataParallel."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from hvdlab.torch.device import choose
    from hvdlab.torch.process_group import nccl_version

    mine = choose(comm.rank, comm.allgather, nccl_version())
    store = dist.FileStore(os.environ["HVDLAB_BENCH_STORE"], comm.size)
    dist.init_process_group(mine.backend, store=store, rank=comm.rank, world_size=comm.size)
    measured = trained_by_torch(
        comm, batches, options, mine.device,
        lambda model, optimizer: (DistributedDataParallel(model), optimizer),
    )  # fmt: skip
    dist.destroy_process_group()
    return measured


def trained_by_torch(
    comm: "MPI.Comm",
    batches: "Batches",
    options: dict,
    device: "torch.device",
    distribute: Callable,
) -> Measured:
    """Train with PyTorch on this rank.

    Args:
        options: "steps" and "network", for `hvdlab.torch.measure_speed.measure`.
        distribute: (model, optimizer) -> (model, optimizer) that exchange gradients.
    """
    import torch

    from hvdlab.torch.measure_speed import measure
    from hvdlab.torch.precision import use_fast_kernels

    torch.manual_seed(1)
    use_fast_kernels()
    rate = measure(batches, comm.Barrier, distribute=distribute, device=device, **options)[1]
    return rate, ranks.device_of_torch(device)


def alone_keras(comm: "MPI.Comm", batches: "Batches", options: dict, exchange: str) -> Measured:
    """Train with Keras, without Horovod in the process."""
    from hvdlab.keras.measure_speed import measure

    return measure(batches, comm.Barrier, **options)[1], ranks.device_of_tensorflow()


def horovod_keras(comm: "MPI.Comm", batches: "Batches", options: dict, exchange: str) -> Measured:
    """Train with Keras; our binding of Horovod sends the gradients."""
    import hvdlab.keras.horovod as hvd
    from hvdlab.keras.device import rank_device
    from hvdlab.keras.measure_speed import measure

    hvd.init()
    place = {"device_dense": rank_device(hvd).device_dense}
    distribute = lambda optimizer: hvd.DistributedOptimizer(optimizer, **place)  # noqa: E731
    rate = measure(batches, comm.Barrier, distribute=distribute, **options)[1]
    return rate, ranks.device_of_tensorflow()


VARIANTS = {
    "alone-torch": alone_torch,
    "horovod-torch": horovod_torch,
    "ddp-torch": ddp_torch,
    "alone-keras": alone_keras,
    "horovod-keras": horovod_keras,
}


def random_batches(batch_size: int, rank: int, size: int) -> "Batches":
    """Return full batches of noise in the shape of CIFAR-10: speed does not depend on the content.

    Args:
        batch_size: images per rank.
        size: number of ranks.
    """
    import numpy as np

    from hvdlab.data import Batches

    rng = np.random.default_rng(0)
    together = batch_size * size
    images = rng.integers(0, 256, (max(20_000 // together, 1) * together, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, len(images))
    return Batches(images, labels, batch_size, rank=rank, size=size, augment=True)


# --- all ranks --------------------------------------------------------------------------------------


def throughput(
    training: ranks.Training,
    rank_counts: Sequence[int] = RANK_COUNTS,
    variants: Sequence[str] = tuple(VARIANTS),
) -> dict:
    """Measure images/s of every variant at every number of ranks, in turns.

    Returns:
        Variant -> {"device": its name, "rates": {ranks: [images/s], one number per round}}.

    Raises:
        ranks.BenchFailed: a variant did not run.
    """
    how = training.steps, training.batch_size, training.network
    measured = ranks.rates_in_turns(
        {(variant, n): f"{variant}, {n} ranks" for variant in variants for n in rank_counts},
        lambda run: ranks.run(__name__, run[1], run[0], *how, device=training.device),
        training,
    )
    return {
        variant: {
            "device": measured[variant, rank_counts[-1]]["device"],
            "rates": {n: measured[variant, n]["rates"] for n in rank_counts},
        }
        for variant in variants
    }


def show(found: dict, batch_size: int, console: Console, network: str = ASSESSMENT_NET) -> None:
    """Print medians with their range. A ratio is the median of the ratios of the rounds.

    Args:
        batch_size: images per rank.
    """
    table = results.table(
        ["variant"], ["ranks", "images/s", "min .. max", "efficiency", "of limit", "to ddp-torch"]
    )
    for variant, measured in found.items():
        one = measured["rates"][min(measured["rates"])]
        peers = [found.get(LIMITS.get(variant)), found.get("ddp-torch")]
        for n, values in measured["rates"].items():
            table.add_row(
                variant,
                str(n),
                *results.median_and_range(values, ",.0f"),
                results.median_ratio(values, [n * value for value in one]),
                *(results.median_ratio(values, peer["rates"][n]) if peer else "" for peer in peers),
            )
    rounds = len(values)
    console.print(
        f"Medians of {rounds} rounds, {network}, batch {batch_size} per rank, one thread per rank"
    )
    console.print(results.devices({label: found[label]["device"] for label in found}))
    console.print(
        "efficiency: images/s, divided by the ranks times images/s of one rank; of limit: images/s, "
        "divided by images/s of as many ranks without an exchange"
    )
    console.print(table)


# --- command ----------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab bench throughput`."""
    results.add_training(parser)
    parser.add_argument(
        "--variants", choices=VARIANTS, nargs="+", default=tuple(VARIANTS), metavar="VARIANT",
        help=f"of {', '.join(VARIANTS)} (default: all)",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab bench throughput` and return its exit code."""
    args.device = ranks.chosen_device(args.device, max(RANK_COUNTS))
    variants = tuple(dict.fromkeys(args.variants))
    found = throughput(ranks.Training.of(args), variants=variants)
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
    """Train on one rank and report the speed; the arguments are those of the command line.

    Args:
        steps: timed steps.
        batch_size: images per rank.
    """
    comm = ranks.communicator()
    batches = random_batches(int(batch_size), comm.rank, comm.size)
    options = {"steps": int(steps), "network": network}
    rate, device = VARIANTS[variant](comm, batches, options, exchange)
    ranks.tell({"rank": comm.rank, "images_per_second": rate, "device": device})


if __name__ == "__main__":
    one_run(*sys.argv[1:])
