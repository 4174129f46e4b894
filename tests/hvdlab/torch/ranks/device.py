"""Two ranks train like a single process, on the device that `rank_device` gives them.

    python device.py float64|bfloat16 contiguous_format|channels_last [ThroughHost]

Each rank prints a line of JSON: its device, and the largest difference of a weight from that of one process
which computes on the processor, from the images of both ranks.
"""

import copy
import json
import os
import sys

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

from hvdlab.torch import device

STEPS, IMAGES = 4, 4  # images per rank and step
dtype, layout = (getattr(torch, name) for name in sys.argv[1:3])
hvd.init()
if "NO_NCCL" in os.environ:
    hvd.nccl_built = lambda: 0
mine = device.rank_device(hvd)
compression = getattr(device, sys.argv[3]) if sys.argv[3:] else mine.compression


class Net(nn.Module):
    """The first kernels are 3 x 3 of three channels: their shape is the same in both layouts."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.now_and_then, self.head = nn.Conv2d(3, 3, 3), nn.Linear(3, 5)

    def forward(self, x, all_layers):
        x = self.second(F.gelu(self.first(x)))
        return self.head((self.now_and_then(x) if all_layers else x).mean((2, 3)))


def loss(model, step, rank, place):
    """Only rank 0 uses all layers, in one step: the other rank has no gradient for one then."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    images = torch.randn(IMAGES, 3, 6, 6, generator=generator).to(
        place, dtype, memory_format=layout
    )
    labels = torch.randint(5, (IMAGES,), generator=generator).to(place)
    return F.cross_entropy(model(images, all_layers=step == 1 and rank == 0), labels)


torch.manual_seed(hvd.rank())  # the ranks begin apart
model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
model.to(dtype)
serial = copy.deepcopy(model)
model.to(mine.device, memory_format=layout)
state = optimizer.state_dict()
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
optimizer.load_state_dict(state)
for step in range(STEPS):
    optimizer.zero_grad()
    loss(model, step, hvd.rank(), mine.device).backward()
    optimizer.step()

alone = torch.optim.SGD(serial.parameters(), 0.1, momentum=0.9)
for step in range(STEPS):
    alone.zero_grad(set_to_none=False)
    for rank in range(hvd.size()):
        (loss(serial, step, rank, "cpu") / hvd.size()).backward()
    for parameter in serial.parameters():  # as Horovod does where a rank has no gradient
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    alone.step()

pairs = list(zip(model.parameters(), serial.parameters(), strict=True))
found = {"rank": hvd.rank(), "device": str(mine.device), "ranks": mine.ranks, "direct": mine.direct}
found["compression"] = compression.__name__
found["gap"] = max((one.cpu() - other).abs().max().item() for one, other in pairs)
found["gradients"] = sorted({f"{one.grad.device.type} {one.grad.dtype}" for one, _ in pairs})
print(json.dumps(found) + "\n", end="", flush=True)
