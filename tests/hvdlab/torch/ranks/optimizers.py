"""Two ranks with B examples each equal a single process with 2 B, for every optimizer, at every step.

Ranks start with different weights. Run by tests/hvdlab/torch/test_horovod.py.
"""

import copy

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

from hvdlab.torch import LAMB, LARS, NovoGrad

STEPS, BATCH_SIZE = 10, 8


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder's weight, transposed."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(6, 10))
        self.bias = nn.Parameter(torch.zeros(6))
        self.back = nn.Parameter(torch.zeros(10))

    def forward(self, x):
        return F.linear(torch.tanh(F.linear(x, self.weight, self.bias)), self.weight.T, self.back)


def frozen():
    model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 10))
    model[2].weight.requires_grad_(False)
    return model


OPTIMIZERS = {
    "LARS": lambda ps: LARS(ps, lr=1.0, weight_decay=1e-3, trust_coefficient=0.02),
    "LARS paper": lambda ps: LARS(ps, lr=1.0, weight_decay=1e-3, momentum_form="paper"),
    "LARC": lambda ps: LARS(ps, lr=0.1, clip=True, nesterov=True),
    "LAMB": lambda ps: LAMB(ps, lr=0.01, exclude_1d=False),
    "NovoGrad": lambda ps: NovoGrad(ps, lr=0.01, weight_decay=1e-3),
}


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def compare(make_model, make_optimizer):
    """Return the largest difference of the weights from those of one process."""
    torch.manual_seed(100 + hvd.rank())
    model = make_model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = copy.deepcopy(model)
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizer = hvd.DistributedOptimizer(
        make_optimizer([p for _, p in trainable]), named_parameters=trainable
    )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    serial = make_optimizer([p for p in alone.parameters() if p.requires_grad])
    # The broadcast makes the optimizer's state by a step with gradients of zero: so does this.
    for p in serial.param_groups[0]["params"]:
        p.grad = torch.zeros_like(p)
    serial.step()

    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for _ in range(STEPS):
        x = torch.randn(hvd.size() * BATCH_SIZE, 10, generator=generator)
        for net, batch, step in (
            (model, x[hvd.rank() :: hvd.size()], optimizer),
            (alone, x, serial),
        ):
            step.zero_grad()
            F.mse_loss(net(batch), batch).backward()
            step.step()
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            if p.grad is not None:
                error = (p.grad - q.grad).abs().max().item()
                assert error < 1e-6, f"{name}: the optimizer saw a gradient that is {error} off"
        everyone = hvd.allgather(flat(model)[None])
        assert torch.equal(everyone[0], everyone[1]), "ranks differ"
        worst = max(worst, (flat(model) - flat(alone)).abs().max().item())
    return worst


hvd.init()
assert hvd.size() == 2
for name, make_optimizer in OPTIMIZERS.items():
    for make_model in (Tied, frozen):
        error = compare(make_model, make_optimizer)
        if hvd.rank() == 0:
            print(f"{name:12} {make_model.__name__:8} {error:.1e}")
        assert error < 1e-6, f"{name}, {make_model.__name__}: {error}"
