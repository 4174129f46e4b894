"""On two ranks: noise after the all-reduce, weights of losses, and norms before and after it.

Ranks start with different weights and generators. Run by tests/hvdlab/torch/test_noise.py.
"""

import copy

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

from hvdlab.torch.noise import GradientNoise, LossWeights, squared_norm

STEPS, BATCH_SIZE = 5, 8

hvd.init()
torch.manual_seed(100 + hvd.rank())
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
alone = copy.deepcopy(model)


def trainer(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return optimizer, GradientNoise(model.parameters(), eta=0.1, seed=3)


optimizer, noise = trainer(model)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
alone_optimizer, alone_noise = trainer(alone)

norms = []
for p in model.parameters():
    p.register_post_accumulate_grad_hook(lambda p: norms.append(squared_norm([p])))

for step in range(STEPS):
    x, y = torch.randn(BATCH_SIZE, 6), torch.randn(BATCH_SIZE, 3)

    # One process on the union of the batches.
    alone.zero_grad()
    F.mse_loss(alone(hvd.allgather(x)), hvd.allgather(y)).backward()
    mine = torch.autograd.grad(F.mse_loss(alone(x), y), alone.parameters())
    local = sum(g.square().sum() for g in mine)
    averaged = squared_norm(alone.parameters())
    alone_noise.add_()
    alone_optimizer.step()

    norms.clear()
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.synchronize()
    torch.testing.assert_close(sum(norms), local)  # in spite of the averaging in place
    torch.testing.assert_close(squared_norm(model.parameters()), averaged)
    noise.add_()
    with optimizer.skip_synchronize():
        optimizer.step()

    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    first, second = hvd.allgather(weights[None])
    assert torch.equal(first, second), step
    torch.testing.assert_close(weights, nn.utils.parameters_to_vector(alone.parameters()).detach())

assert abs(float(local) - float(averaged)) > 0.01  # or the two norms would tell nothing apart
z = LossWeights(1.0, rank=hvd.rank())(torch.empty(1000))
assert abs(torch.corrcoef(hvd.allgather(z[None]))[0, 1]) < 0.15
