"""Measure Horovod's exchange: an all-reduce by size, and a training step with and without the exchange."""

import time
from collections.abc import Callable

import horovod.torch as hvd
import torch

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import milliseconds, spread, wait_for
from hvdlab.gpu_report.networks import Setting, settings, step
from hvdlab.gpu_report.world import World, exchange_with_one_rank_too, join_world
from hvdlab.torch.device import ThroughHost

SIZES = (4 << 10, 256 << 10, 4 << 20, 64 << 20)  # bytes
WARM_UP_CALLS = 3


def main(findings: Findings) -> None:
    """Measure all-reduces and training steps on all ranks; rank 0 reports them."""
    world = join_world()
    exchange_with_one_rank_too()
    gpu = world.device.type == "cuda"
    for nbytes in SIZES if gpu else SIZES[:2]:
        all_reduce(findings, world, nbytes, 60 if gpu else 5)
    for network, batch in settings(gpu)[:: 2 if gpu else 1]:
        training(findings, world, Setting(network, batch, "bfloat16"), 40 if gpu else 3)


def timed(world: World, operation: Callable[[], object], count: int) -> list[float]:
    """Return milliseconds of `count` single calls; every rank makes the same number of calls."""
    times = []
    for _ in range(WARM_UP_CALLS + count):
        wait_for(world.device)
        began = time.perf_counter()
        operation()
        wait_for(world.device)
        times.append(1000 * (time.perf_counter() - began))
    return spread(times[WARM_UP_CALLS:])


def all_reduce(findings: Findings, world: World, nbytes: int, count: int) -> None:
    """Measure an all-reduce as this rank makes it, and the copies to and from host memory alone.

    Args:
        count: number of timed calls.
    """
    tensor = torch.ones(nbytes // 4, device=world.device)
    name = f"times.{nbytes}"

    def exchanged() -> None:
        world.through(lambda t: hvd.allreduce_(t, op=hvd.Sum, name=name), tensor)

    def copied() -> None:
        sent, context = ThroughHost.compress(tensor)
        ThroughHost.decompress(sent, context)

    # All ranks must make the calls in the same order.
    times = {
        "clone on the device": timed(world, tensor.clone, count),
        "all-reduce": timed(world, exchanged, count),
        "to host memory and back, no exchange": timed(world, copied, count),
    }
    if world.rank == 0:
        size = f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
        measure = findings.rows("All-reduce of float32 numbers", world.label, "float32", "us")
        for what in ("clone on the device", "to host memory and back, no exchange", "all-reduce"):
            measure(f"{size}, {what}", [1000 * ms for ms in times[what]])


def training(findings: Findings, world: World, setting: Setting, count: int) -> None:
    """Measure a step of plain PyTorch, with DistributedOptimizer, and with gradients through host memory.

    Args:
        count: number of timed steps of several ranks.
    """
    table = "Training step with and without the exchange of gradients"
    measure = findings.rows(table, world.label, setting.precision, "ms")
    methods = {"plain PyTorch": None, "DistributedOptimizer": world.compression}
    if world.compression is not ThroughHost:
        methods["DistributedOptimizer, gradients through host memory"] = ThroughHost
    for label, compression in methods.items():

        def distribute(
            model: torch.nn.Module,
            optimizer: torch.optim.Optimizer,
            compression: type | None = compression,
        ) -> torch.optim.Optimizer:
            named = model.named_parameters()
            return hvd.DistributedOptimizer(optimizer, named, compression=compression)

        one = step(setting, world.device, distribute if compression else None)
        if world.size == 1:  # blocks of steps, in which the processor may run ahead of the GPU
            times = milliseconds(one, world.device, 0.8)
        else:
            times = timed(world, one, count)
            hvd.barrier()
        if world.rank == 0:
            measure(f"{setting}, {label}", times)
        del one


if __name__ == "__main__":
    start(main)
