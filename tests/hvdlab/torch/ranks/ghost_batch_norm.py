"""Two ranks with separate batch norms equal a single process with ghosts of half its batch.

Run by tests/hvdlab/torch/test_horovod.py. Ranks start with different weights.
"""

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

from hvdlab.torch.normalization import convert

STEPS, BATCH_SIZE = 5, 6


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4),
        nn.ReLU(), nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5),
    ).double()  # fmt: skip


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


hvd.init()
assert hvd.size() == 2
torch.manual_seed(100 + hvd.rank())
model = network()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
alone = network()
alone.load_state_dict(model.state_dict())
convert(alone, BATCH_SIZE)
optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
serial = sgd(alone)

generator = torch.Generator().manual_seed(0)
for step in range(STEPS):
    x = torch.randn(2 * BATCH_SIZE, 3, 8, 8, generator=generator, dtype=torch.float64)
    labels = torch.randint(5, (2 * BATCH_SIZE,), generator=generator)
    mine = slice(hvd.rank() * BATCH_SIZE, (hvd.rank() + 1) * BATCH_SIZE)
    for net, part, update in ((model, mine, optimizer), (alone, slice(None), serial)):
        update.zero_grad()
        F.cross_entropy(net(x[part]), labels[part]).backward()
        update.step()
    for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
        everyone = hvd.allgather(p.detach()[None].contiguous())
        assert torch.equal(everyone[0], everyone[1]), f"{name}: ranks differ at step {step}"
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)
if hvd.rank() == 0:
    print("equal")
