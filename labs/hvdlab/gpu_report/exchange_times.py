"""What Horovod's exchange costs: an all-reduce by size, and a training step with and without it."""

import time

import horovod.torch as hvd
import torch

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import milliseconds, spread
from hvdlab.gpu_report.networks import Setting, settings, step
from hvdlab.gpu_report.world import World, exchange_with_one_rank_too, join_world
from hvdlab.torch.device import ThroughHost

SIZES = (4 << 10, 256 << 10, 4 << 20, 64 << 20)  # bytes


def main(findings: Findings) -> None:
    world = join_world()
    exchange_with_one_rank_too()
    gpu = world.device.type == "cuda"
    for nbytes in SIZES if gpu else SIZES[:2]:
        all_reduce(findings, world, nbytes, 60 if gpu else 5)
    for network, batch in settings(gpu)[:: 2 if gpu else 1]:
        training(findings, world, Setting(network, batch, "bfloat16"), 40 if gpu else 3)


def timed(world: World, operation, count: int) -> list[float]:
    """Milliseconds of single calls, all ranks at once: the same number of calls on every rank."""
    gpu = world.device.type == "cuda"
    times = []
    for number in range(3 + count):
        if gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        operation()
        if gpu:
            torch.cuda.synchronize()
        if number >= 3:
            times.append(1000 * (time.perf_counter() - began))
    return spread(times)


def all_reduce(findings: Findings, world: World, nbytes: int, count: int) -> None:
    """The call, through what this rank uses, and what the copies alone take."""
    tensor = torch.ones(nbytes // 4, device=world.device)
    name = f"times.{nbytes}"

    def exchanged():
        world.through(lambda t: hvd.allreduce_(t, op=hvd.Sum, name=name), tensor)

    def copied():
        sent, context = ThroughHost.compress(tensor)
        ThroughHost.decompress(sent, context)

    table, size = "All-reduce of float32 numbers", size_words(nbytes)
    clone = timed(world, tensor.clone, count)
    exchange, copy = timed(world, exchanged, count), timed(world, copied, count)
    if world.rank:
        return

    def measure(what, values, peer=None):
        values = [1000 * ms for ms in values]
        return findings.measure(
            table, f"{size}, {what}", world.label, "float32", "us", values, peer
        )

    peer = measure("clone on the device", clone)
    measure("to host memory and back, no exchange", copy, peer)
    measure("all-reduce", exchange, peer)


def size_words(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def training(findings: Findings, world: World, setting: Setting, count: int) -> None:
    """A step of plain PyTorch, with DistributedOptimizer, and with the gradients sent through host memory."""
    table = "Training step with and without the exchange of gradients"
    ways = {"plain PyTorch": None, "DistributedOptimizer": world.compression}
    if world.compression is not ThroughHost:
        ways["DistributedOptimizer, gradients through host memory"] = ThroughHost
    peer = None
    for label, compression in ways.items():

        def distribute(model, optimizer, compression=compression):
            named = model.named_parameters()
            return hvd.DistributedOptimizer(optimizer, named, compression=compression)

        one = step(setting, world.device, distribute if compression else None)
        if world.size == 1:  # blocks of steps, in which the processor may run ahead
            times = milliseconds(one, world.device, 0.8)
        else:
            times = timed(world, one, count)
            hvd.barrier()
        if world.rank == 0:
            what = f"{setting}, {label}"
            found = findings.measure(table, what, world.label, setting.precision, "ms", times, peer)
            peer = peer or found
        del one


if __name__ == "__main__":
    start(main)
