"""Train a small network on N ranks, and in a single process that reads all batches; compare the weights.

The weights must be equal in each memory format and each type. The ranks start with different weights, so that
the broadcast is part of the test. Convolutions run without TF32.
"""

import copy
import itertools

import horovod.torch as hvd
import torch
from torch import nn

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import dtype_name, set_precision
from hvdlab.gpu_report.world import World, exchange_with_one_rank_too, join_world
from hvdlab.torch.device import InHorovodsLayout, ThroughHost

STEPS, BATCH = 4, 16
# Largest difference of a weight, as a fraction of the largest weight.
LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}
FORMATS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def main(findings: Findings) -> None:
    """Compare the weights for each path of the gradients, type and memory format."""
    world = join_world()
    exchange_with_one_rank_too()
    set_precision("float32")
    torch.use_deterministic_algorithms(True, warn_only=True)
    ways = [world.compression]
    if world.device.type == "cpu" or ways == [InHorovodsLayout]:
        ways = [InHorovodsLayout, ThroughHost]  # both paths work there
    for way in ways:
        label = world.label + (", gradients copied" if way is ThroughHost and len(ways) > 1 else "")
        for dtype, name in itertools.product(LIMITS, FORMATS):
            try:
                compare(findings, world, way, label, dtype, name)
            except Exception as error:  # the other combinations still run
                findings.wrong("", f"weights, {name}", label, dtype_name(dtype), error)


def compare(
    findings: Findings, world: World, way: type, label: str, dtype: torch.dtype, name: str
) -> None:
    """Train both networks, and report the difference of their weights."""
    torch.manual_seed(100 + world.rank)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 10)
    ).double()
    # float64 weights in host memory, because every build of Horovod can send them
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    model.to(world.device, dtype=dtype, memory_format=FORMATS[name])
    serial = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=way)
    train(model, optimizer, world, slice(world.rank, None, world.size))
    train(serial, torch.optim.SGD(serial.parameters(), lr=0.1, momentum=0.9), world, slice(None))

    ours, theirs = flat(model), flat(serial)
    differences = ((ours - theirs).abs() / theirs.abs().max()).tolist()
    what, kind = f"weights after {STEPS} steps, {name}", dtype_name(dtype)
    findings.check("", what, label, kind, differences, LIMITS[dtype], "a single process")
    if world.size > 1:
        everyone = hvd.allgather(ours[None].contiguous())
        apart = (everyone - everyone[0]).abs().max(1).values.tolist()
        what, expected = f"weights of the ranks, {name}", "each other: they must be equal"
        findings.check("", what, label, kind, apart, 0.0, expected)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, world: World, own: slice) -> None:
    """Train for some steps on random images."""
    dtype = next(model.parameters()).dtype
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(BATCH * world.size, 3, 8, 8, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 10, (len(images),), generator=generator)
        images, labels = images[own].to(world.device, dtype), labels[own].to(world.device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images).double(), labels).backward()
        optimizer.step()


def flat(model: nn.Module) -> torch.Tensor:
    """Return all weights as one array of float64 numbers in host memory."""
    return torch.cat([p.detach().double().cpu().flatten() for p in model.parameters()])


if __name__ == "__main__":
    start(main)
