"""Two kinds of noise on gradients: multiplicative noise on losses, and additive annealed noise.

`LossWeights` gives the gradient of a large batch the noise of a small one. `GradientNoise` adds Gaussian
noise whose variance falls with the steps. Neither reads or changes torch's global random generators. All
numbers follow from (seed, rank, step), so a run can be repeated, and resumed from a step.
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

    The gradient of a batch of M examples becomes (1/M) sum_n z_n g_n. Let G be the mean and C the
    covariance of the per-example gradients g_n. Then the new gradient is unbiased, and its covariance is

        ((1 + std^2) C + std^2 G G^T) / M,    about (1 + std^2) C / M if the noise exceeds G

    Batch norm couples the examples of a batch; with it g_n is the contribution of example n's loss to
    the gradient. Report the loss without weights, because they only make the printed value noisier.

    Args:
        std: standard deviation of the weights, at least 0. `std_for(large_batch, small_batch)` computes
            it.
        seed: the same on all ranks. Default 0.
        rank: this rank's number, so that each rank draws its own weights. Default 0.

    Attributes:
        step: number of calls so far. Set it to resume where an earlier run stopped.

    Raises:
        ValueError: an argument is out of range; when called: `losses` does not have the shape (batch,).

    Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, section 4,
    arXiv:1705.08741.
    """

    def __init__(self, std: float, seed: int = 0, rank: int = 0) -> None:
        _check_at_least_0(std=std, seed=seed, rank=rank)
        self.std, self.seed, self.rank = std, seed, rank
        self.step = 0

    std_for = staticmethod(loss_weight_std)

    def __call__(self, losses: Tensor) -> Tensor:
        """Return new weights for losses, with the shape, dtype and device of the losses.

        Args:
            losses: the loss of each example, shape (batch,).

        Raises:
            ValueError: `losses` has another shape.
        """
        if losses.dim() != 1:
            raise ValueError(
                'losses must be one number per example, shape (batch,): use reduction="none". '
                f"Received: shape={tuple(losses.shape)}"
            )
        weights = 1 + self.std * _standard_normal(losses, self.seed, 1, self.rank, self.step)
        self.step += 1
        return weights


class GradientNoise:
    """Additive annealed noise: N(0, eta / (1 + t)^gamma) on every gradient at step t = 0, 1, ...

    Under Horovod add the noise to the averaged gradients, with the same seed on all ranks. Then all ranks
    add the same numbers, and their weights stay equal.

        noise = GradientNoise(model.parameters(), eta=0.01, seed=1)      # the same on all ranks
        loss.backward()
        optimizer.synchronize()          # Horovod's all-reduce, which step() would do too late
        noise.add_()
        with optimizer.skip_synchronize():
            optimizer.step()

    With different numbers on each rank *after* the all-reduce the weights of the ranks would drift apart,
    and no message would report it. Different numbers *before* it are safe, but averaging N ranks divides
    their variance by N, so eta would have to be N times as large. With a `GradScaler` call its
    `unscale_(optimizer)` first.

    Args:
        parameters: parameters whose gradients get noise, in the same order on all ranks.
        eta: variance at the first step, at least 0. The paper tries 0.01, 0.3 and 1.
        gamma: exponent with which the variance falls, at least 0. Default 0.55, as in the paper.
        seed: the same on all ranks. Default 0.

    Attributes:
        step: number of steps so far, t.

    Raises:
        ValueError: an argument is out of range, or there are no parameters.

    Source: Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks,
    2015, arXiv:1511.06807.
    """

    def __init__(
        self, parameters: Iterable[Tensor], eta: float, gamma: float = 0.55, seed: int = 0
    ) -> None:
        _check_at_least_0(eta=eta, gamma=gamma, seed=seed)
        self.parameters = list(parameters)  # model.parameters() can be read once only
        if not self.parameters:
            raise ValueError("parameters must hold at least one tensor. Received: none")
        self.eta, self.gamma, self.seed = eta, gamma, seed
        self.step = 0

    @property
    def variance(self) -> float:
        """Variance of the next noise: eta / (1 + step)^gamma."""
        return self.eta / (1 + self.step) ** self.gamma

    @torch.no_grad()
    def add_(self) -> None:
        """Add noise to each gradient in place, and count a step. Parameters without one are skipped."""
        std = math.sqrt(self.variance)
        for i, p in enumerate(self.parameters):
            if p.grad is not None:
                # Each tensor has its own seed, so its numbers do not depend on other tensors.
                p.grad.add_(_standard_normal(p.grad, self.seed, 2, self.step, i), alpha=std)
        self.step += 1

    def state_dict(self) -> dict[str, int]:
        """Return the step. With the same arguments, a resumed run needs nothing else for the same noise."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at the step of a saved state."""
        self.step = state["step"]


@torch.no_grad()
def squared_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return |g|^2 over the gradients of all parameters, for `hvdlab.noise_scale`.

    Args:
        parameters: parameters of a model. Those without a gradient are skipped.

    Returns:
        a float32 scalar on the device of the gradients; float64 if a gradient is float64.

    Raises:
        ValueError: no parameter has a gradient.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        raise ValueError("parameters must have gradients: call backward() first. Received: none")
    # At least float32, because squares of float16 gradients leave the range of float16.
    return sum(g.to(torch.promote_types(g.dtype, torch.float32)).square().sum() for g in gradients)


def _standard_normal(like: Tensor, *key: int) -> Tensor:
    """Return N(0, 1) numbers with the shape, dtype and device of `like`; only the key determines them."""
    # The key is hashed, because neighbouring seeds and steps must not give related numbers.
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _check_at_least_0(**arguments: float) -> None:
    for name, value in arguments.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite. Received: {name}={value!r}")
