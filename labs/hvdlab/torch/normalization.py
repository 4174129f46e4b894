"""Ghost batch normalisation: the statistics of small batches inside a large one.

In training a batch is divided into ghosts of `ghost_size` consecutive examples, and each ghost is
normalised by its own mean and variance. So a large batch keeps the noise that the statistics of a small
batch have. A single process with a batch of N x `ghost_size` examples then computes exactly what N
processes compute with `ghost_size` examples each and with separate batch norms.

Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, algorithm 1,
arXiv:1705.08741. `hvdlab.reference.ghost_batch_norm` is the same in NumPy.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _GhostBatchNorm(nn.modules.batchnorm._BatchNorm):
    def __init__(
        self,
        num_features: int,
        ghost_size: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_ghost_size(ghost_size)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.ghost_size = ghost_size

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised input, in its shape.

        Raises:
            ValueError: in training: a ghost has only one value per channel.
        """
        self._check_input_dim(input)
        if not self.training or len(input) <= self.ghost_size:
            return super().forward(input)

        rest = len(input) % self.ghost_size
        if (rest or self.ghost_size) * input[0, 0].numel() == 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got a ghost of one: "
                f"input size {tuple(input.shape)}, ghost_size={self.ghost_size}"
            )

        x = input[(...,) + (None,) * (4 - input.dim())]  # (batch, channels, height, width)
        # All full ghosts at once, then the shorter last one.
        blocks = x.split([len(x) - rest, rest]) if rest else [x]
        ys, means, variances = zip(
            *[
                _Normalize.apply(
                    block, self.weight, self.bias, min(self.ghost_size, len(block)), self.eps
                )
                for block in blocks
            ],
            strict=True,
        )
        if self.track_running_stats:
            self._track(torch.cat(means), torch.cat(variances))
        return (torch.cat(ys) if rest else ys[0]).view(input.shape)

    @torch.no_grad()
    def _track(self, means: Tensor, variances: Tensor) -> None:
        """Update the running statistics with those of each ghost in turn, (ghosts, channels)."""
        ghosts = len(means)
        self.num_batches_tracked.add_(ghosts)
        if self.momentum is None:
            weights = means.new_ones(ghosts) / self.num_batches_tracked
        else:
            # running <- (1 - momentum) running + momentum statistic for each ghost in turn, as one sum
            age = torch.arange(ghosts - 1, -1, -1, dtype=means.dtype, device=means.device)
            weights = self.momentum * (1 - self.momentum) ** age
        for running, new in (self.running_mean, means), (self.running_var, variances):
            running.copy_((1 - weights.sum()) * running + (weights[:, None] * new).sum(0))

    def extra_repr(self) -> str:
        """Return the arguments of the layer, for `print(model)`."""
        return f"{super().extra_repr()}, ghost_size={self.ghost_size}"


class GhostBatchNorm1d(_GhostBatchNorm, nn.BatchNorm1d):
    """Ghost batch norm of inputs (batch, channels) or (batch, channels, length).

    Everything that is not described here is as in `torch.nn.BatchNorm1d`. The state_dict of either layer
    can be loaded into the other. Evaluation works as in the plain layer, and so does training on a batch
    of at most `ghost_size` examples. Gradients of gradients are not supported.

    Args:
        num_features: number of channels.
        ghost_size: number of examples of a ghost, at least 1. The last ghost of a batch takes the
            remainder.
        eps: added to the variance. Default 1e-5.
        momentum: weight of the statistics of one ghost (with the unbiased variance) in the running
            statistics, which are updated with one ghost after the other. None: the running statistics
            are the average over all ghosts so far. Default 0.1.
        affine: whether there are a weight and a bias per channel. Default True.
        track_running_stats: whether there are running statistics for evaluation. Default True.
            `num_batches_tracked` counts ghosts.
        device: device of the parameters. Default: torch's default device.
        dtype: dtype of the parameters. Default: torch's default dtype.

    Raises:
        ValueError: `ghost_size` is not an integer of at least 1. In training, before any statistic
            changes: a ghost has only one value per channel, so that it has no variance. Choose a ghost
            size without such a remainder, or drop the last batch.

    Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, algorithm 1,
    arXiv:1705.08741.
    """


class GhostBatchNorm2d(_GhostBatchNorm, nn.BatchNorm2d):
    """Ghost batch norm of inputs (batch, channels, height, width); arguments as in `GhostBatchNorm1d`.

    The output has the memory format of the input: a channels-last input gives a channels-last output.
    """


GHOST = {
    nn.BatchNorm1d: GhostBatchNorm1d,
    nn.BatchNorm2d: GhostBatchNorm2d,
    GhostBatchNorm1d: GhostBatchNorm1d,
    GhostBatchNorm2d: GhostBatchNorm2d,
}


def convert(module: nn.Module, ghost_size: int) -> nn.Module:
    """Make every BatchNorm1d and BatchNorm2d of a model a ghost batch norm, in place; return the model.

    The layers keep their parameters, buffers and hooks, so an optimizer that was made before stays valid.
    Layers that are ghost batch norms already get the new size.

    Args:
        module: the model, or a single layer.
        ghost_size: number of examples of a ghost, at least 1.

    Raises:
        ValueError: `ghost_size` is not an integer of at least 1.
        TypeError: the model has another batch norm: 3d, lazy, synchronised, or a subclass, which may do
            more than normalise. The model is unchanged then.
    """
    _check_ghost_size(ghost_size)
    layers = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for layer in layers:
        if type(layer) not in GHOST:
            raise TypeError(
                "module must have no batch norm but BatchNorm1d and BatchNorm2d. "
                f"Received: {type(layer).__name__}"
            )
    for layer in layers:
        layer.__class__ = GHOST[type(layer)]
        layer.ghost_size = ghost_size
    return module


def _check_ghost_size(ghost_size: int) -> None:
    if not isinstance(ghost_size, int) or isinstance(ghost_size, bool) or ghost_size < 1:
        raise ValueError(
            f"ghost_size must be an integer of at least 1. Received: ghost_size={ghost_size!r}"
        )


class _Normalize(torch.autograd.Function):
    """Normalises (batch, channels, height, width) of whole ghosts; also returns means and variances.

    The results are y, and the means and unbiased variances (ghosts, channels). Apart from the result, no
    tensor of the input's size is allocated, forward or backward, because on a CPU new memory costs more
    time than the arithmetic. Statistics inside have the shape (ghosts, 1, channels, 1, 1).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, ghost_size: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        given, dtype, x = x, x.dtype, _at_least_float32(x)
        ghosts = x.unflatten(0, (-1, ghost_size))
        n = ghosts[0, :, 0].numel()

        mean = _mean(x, ghost_size)
        y = torch.empty_like(x)
        out = y.unflatten(0, (-1, ghost_size))
        torch.sub(ghosts, mean, out=out)
        var = _mean(y.square_(), ghost_size)  # E[x^2] - mean^2 could lose all digits
        invstd = (var + eps).rsqrt()

        # y = (x - mean) invstd weight + bias = x scale + shift
        scale = _scale(invstd, weight)
        shift = -mean * scale if bias is None else bias[:, None, None] - mean * scale
        torch.addcmul(shift, ghosts, scale, out=out)

        ctx.save_for_backward(given, weight, mean, invstd)
        ctx.ghost_size, ctx.affine = ghost_size, (weight is not None, bias is not None)
        statistics = mean[:, 0, :, 0, 0], var[:, 0, :, 0, 0] * (n / (n - 1))
        ctx.mark_non_differentiable(*statistics)
        return y.to(dtype), *statistics

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        dtype, x, dy = x.dtype, _at_least_float32(x), _at_least_float32(dy)
        ghosts = x.unflatten(0, (-1, ctx.ghost_size))
        n = ghosts[0, :, 0].numel()

        # With xhat = (x - mean) invstd, the averages over a ghost are a = <dy> and b = <dy xhat>.
        dx = torch.mul(x, dy, out=torch.empty_like(x))
        a = _mean(dy, ctx.ghost_size)
        b = (_mean(dx, ctx.ghost_size) - mean * a) * invstd

        # dx = scale (dy - a - b xhat) = dy scale + x slope - (a scale + mean slope)
        scale = _scale(invstd, weight)
        slope = -b * invstd * scale
        out = dx.unflatten(0, (-1, ctx.ghost_size))
        torch.addcmul(-a * scale - mean * slope, ghosts, slope, out=out)
        out.addcmul_(dy.unflatten(0, (-1, ctx.ghost_size)), scale)

        dweight, dbias = (
            n * average.sum((0, 1, 3, 4)) if wanted else None
            for average, wanted in zip((b, a), ctx.affine, strict=True)
        )
        return dx.to(dtype), dweight, dbias, None, None


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _scale(invstd: Tensor, weight: Tensor | None) -> Tensor:
    return invstd if weight is None else invstd * weight[:, None, None]


def _mean(x: Tensor, ghost_size: int) -> Tensor:
    """Return the average over each ghost of (batch, channels, height, width), pixels first."""
    channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    if x.shape[2:].numel() == 1:
        pixels = x
    elif channels_last and x.device.type == "cpu":
        pixels = F.avg_pool2d(x, x.shape[2:])  # twice as fast as mean()
    else:
        pixels = x.mean((2, 3), keepdim=True)
    return pixels.unflatten(0, (-1, ghost_size)).mean(1, keepdim=True)
