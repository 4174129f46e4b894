"""Noise on gradients, two kinds: what a large batch lost, and what anneals away.

`LossWeights` gives the gradient of a large batch the noise of a small one. `GradientNoise` adds
Gaussian noise to it that fades with the steps. Neither reads or moves torch's global generators:
all numbers follow from (seed, rank, step), so a run can be repeated, and resumed from the step.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from hvdlab.noise_scale import loss_weight_std


class LossWeights:
    """Multiplicative noise: a weight z ~ N(1, std^2) for the loss of each example.

        weights = LossWeights(LossWeights.std_for(4096, 128), rank=hvd.rank())
        losses = F.cross_entropy(model(x), y, reduction="none")
        (weights(losses) * losses).mean().backward()

    The gradient of a batch of M examples becomes (1/M) sum_n z_n g_n. With G the mean and C the
    covariance of the per-example gradients g_n it is unbiased, and its covariance is

        ((1 + std^2) C + std^2 G G^T) / M,    about (1 + std^2) C / M where the noise exceeds G

    Batch norm couples the examples of a batch; there g_n is what the loss of example n adds to the
    gradient. Report the loss without weights: they only make its printed value noisier.

    Args:
        std: standard deviation of the weights, at least 0. `std_for` computes it.
        seed: the same on all ranks. Default 0.
        rank: this rank's number, so that each rank draws its own weights. Default 0.

    Attributes:
        step: calls so far. Set it to go on where an earlier run stopped.

    Raises:
        ValueError: an argument is out of range; when called: `losses` has not the shape (batch,).

    Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, section 4,
    arXiv:1705.08741.
    """

    def __init__(self, std: float, seed: int = 0, rank: int = 0):
        _check_at_least_0(std=std, seed=seed, rank=rank)
        self.std, self.seed, self.rank = std, seed, rank
        self.step = 0

    std_for = staticmethod(loss_weight_std)

    def __call__(self, losses: Tensor) -> Tensor:
        """Draw new weights for `losses` of shape (batch,), in their shape, dtype and device."""
        if losses.dim() != 1:
            raise ValueError(
                'losses must be one number an example, shape (batch,): use reduction="none". '
                f"Received: shape={tuple(losses.shape)}"
            )
        weights = 1 + self.std * _standard_normal(losses, self.seed, 1, self.rank, self.step)
        self.step += 1
        return weights


class GradientNoise:
    """Additive annealed noise: N(0, eta / (1 + t)^gamma) on every gradient at step t = 0, 1, ...

    Under Horovod add it to the averaged gradients, with the same seed on all ranks: then all ranks
    add the same numbers and their weights stay equal.

        noise = GradientNoise(model.parameters(), eta=0.01, seed=1)      # there is no rank to give
        loss.backward()
        optimizer.synchronize()          # Horovod: the all-reduce, which step() would do too late
        noise.add_()
        with optimizer.skip_synchronize():
            optimizer.step()

    Different numbers on each rank *after* the all-reduce would let the replicas drift apart for
    ever, and nothing would say so. Drawn per rank *before* it they are safe, but averaging N ranks
    divides their variance by N: eta would have to be N times as large. With a `GradScaler` call
    its `unscale_(optimizer)` first.

    Args:
        parameters: those whose gradients get noise; in the same order on all ranks.
        eta: variance at the first step, at least 0. The paper tries 0.01, 0.3 and 1.
        gamma: how fast the variance falls, at least 0. Default 0.55, the paper's.
        seed: the same on all ranks. Default 0.

    Attributes:
        step: steps so far, t.

    Raises:
        ValueError: an argument is out of range, or there are no parameters.

    Source: Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks,
    2015, arXiv:1511.06807.
    """

    def __init__(
        self, parameters: Iterable[Tensor], eta: float, gamma: float = 0.55, seed: int = 0
    ):
        _check_at_least_0(eta=eta, gamma=gamma, seed=seed)
        self.parameters = list(parameters)  # model.parameters() can be read once only
        if not self.parameters:
            raise ValueError("parameters must hold at least one tensor. Received: none")
        self.eta, self.gamma, self.seed = eta, gamma, seed
        self.step = 0

    @property
    def variance(self) -> float:
        """Of the next noise: eta / (1 + step)^gamma."""
        return self.eta / (1 + self.step) ** self.gamma

    @torch.no_grad()
    def add_(self) -> None:
        """Add noise to each `p.grad` in place and count a step; parameters without one are skipped."""
        std = math.sqrt(self.variance)
        for i, p in enumerate(self.parameters):
            if p.grad is not None:
                # A seed for each tensor: its numbers do not depend on the others.
                p.grad.add_(_standard_normal(p.grad, self.seed, 2, self.step, i), alpha=std)
        self.step += 1

    def state_dict(self) -> dict[str, int]:
        """The step: with the same arguments, all that a resumed run needs to draw the same noise."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


@torch.no_grad()
def squared_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return |g|^2 over the gradients of all parameters, for `hvdlab.noise_scale`.

    A float32 scalar on the device of the gradients (float64 if one of them is); parameters without
    a gradient are skipped. Raises ValueError when none has one.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        raise ValueError("parameters must have gradients: call backward() first. Received: none")
    # float32 at least: squares of float16 gradients leave its range.
    return sum(g.to(torch.promote_types(g.dtype, torch.float32)).square().sum() for g in gradients)


def _standard_normal(like: Tensor, *key: int) -> Tensor:
    """Draw N(0, 1) in the shape, dtype and device of `like`; the key alone gives the numbers."""
    # Hashed, because neighbouring seeds and steps must not give related streams.
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _check_at_least_0(**arguments) -> None:
    for name, value in arguments.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite. Received: {name}={value!r}")
