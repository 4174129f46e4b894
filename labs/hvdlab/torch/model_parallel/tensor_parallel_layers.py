"""Layers that are split over a grid of ranks: Megatron-LM's with one column, AxoNN's with several.

    network = split_over_grid(ResidualMLP(), rows, columns)     # process groups
    weights = whole(network)                                    # gathered again

The outputs of `up` are split over the rows and its inputs over the columns; for `down` rows and columns are
exchanged. With one column only the blocks are split (Megatron-LM). With several columns every product is a
partial sum (AxoNN).

Source: Shoeybi et al., Megatron-LM, 2019, arXiv:1909.08053; Singh et al., A 4D Hybrid Algorithm to Scale
Parallel Training to Thousands of GPUs, 2023, arXiv:2305.13525.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.nn import functional as F


class Copy(torch.autograd.Function):
    """Megatron's f: forward the identity, backward an all-reduce.

    All ranks of the group have the same x, and each rank uses it for a part of the work. So the gradient
    of x is the sum of the gradients of all ranks.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # A copy, because the backward pass of `+` gives the same tensor to both summands.
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Reduce(torch.autograd.Function):
    """Megatron's g: forward an all-reduce, backward the identity.

    Each rank of the group has one summand, and all ranks continue with the sum.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None  # the gradient of a sum is the same for each summand


def part(tensor: Tensor, dim: int, group: ProcessGroup | None) -> Tensor:
    """Return a copy of this rank's part of a tensor.

    Args:
        tensor: the whole tensor.
        dim: the dimension that is split.
        group: the ranks that share the tensor; None: this rank keeps the whole tensor.
    """
    if group is None:
        return tensor.detach().clone()
    chunks = tensor.detach().chunk(dist.get_world_size(group), dim)
    return chunks[dist.get_rank(group)].clone(memory_format=torch.contiguous_format)


def gather(tensor: Tensor, dim: int, group: ProcessGroup | None) -> Tensor:
    """Return the whole tensor, gathered from the parts of all ranks of a group.

    Args:
        tensor: this rank's part.
        dim: the dimension that is split.
        group: the ranks that share the tensor; None: the part is the whole tensor.
    """
    if group is None:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim)


class SplitLinear(nn.Module):
    """Linear layer y = x W^T + b whose inputs and outputs are split over two groups of ranks.

    Args:
        linear: the whole layer, equal on all ranks.
        inner_group: the ranks that share the inputs; None: the inputs are not split.
        outer_group: the ranks that share the outputs; None: the outputs are not split.
    """

    def __init__(
        self,
        linear: nn.Linear,
        inner_group: ProcessGroup | None,
        outer_group: ProcessGroup | None,
    ) -> None:
        super().__init__()
        self.inner_group, self.outer_group = inner_group, outer_group
        self.weight = nn.Parameter(part(part(linear.weight, 0, outer_group), 1, inner_group))
        self.bias = nn.Parameter(part(linear.bias, 0, outer_group))

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's outputs (batch, outputs of the rank), from its inputs."""
        if self.outer_group:
            x = Copy.apply(x, self.outer_group)
        y = F.linear(x, self.weight)
        if self.inner_group:
            y = Reduce.apply(y, self.inner_group)
        return y + self.bias  # after the sum, because it must be added only once


class SplitNorm(nn.Module):
    """Layer normalisation of features that are split over ranks. Only two sums per example are sent.

    Args:
        norm: the whole layer, equal on all ranks.
        group: the ranks that share the features.
    """

    def __init__(self, norm: nn.LayerNorm, group: ProcessGroup) -> None:
        super().__init__()
        self.outer_group, self.width, self.eps = group, len(norm.weight), norm.eps
        self.weight = nn.Parameter(part(norm.weight, 0, group))
        self.bias = nn.Parameter(part(norm.bias, 0, group))

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean over the features of all ranks.

        The sum is reduced forward, and its gradient backward, because every rank uses the sum.

        Args:
            x: this rank's features (batch, features of the rank).
        """
        total = Copy.apply(
            Reduce.apply(x.sum(-1, keepdim=True), self.outer_group), self.outer_group
        )
        return total / self.width

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's normalised features, in the shape of x."""
        x = x - self.mean(x)
        return x * torch.rsqrt(self.mean(x**2) + self.eps) * self.weight + self.bias


def split_over_grid(
    network: nn.Module,
    rows: ProcessGroup,
    columns: ProcessGroup,
    linear: Callable[..., nn.Module] = SplitLinear,
) -> nn.Module:
    """Return a copy of a network whose layers are split over a grid of ranks.

    In each block the outputs of `up` are split over the rows and its inputs over the columns; for `down`
    rows and columns are exchanged. Between the blocks the features are split over the columns. In a grid
    of one column the features, the norms, the stem and the head are not split.

    Args:
        network: a `ResidualMLP`, equal on all ranks.
        rows: the ranks of this rank's column, which differ in their row.
        columns: the ranks of this rank's row, which differ in their column.
        linear: function (linear layer, inner_group=, outer_group=) -> split layer, for the blocks.
            Default: `SplitLinear`.
    """
    network, columns = copy.deepcopy(network), columns if dist.get_world_size(columns) > 1 else None
    for block in network.blocks:
        block.up = linear(block.up, inner_group=columns, outer_group=rows)
        block.down = linear(block.down, inner_group=rows, outer_group=columns)
    if columns:
        network.stem = SplitLinear(network.stem, inner_group=None, outer_group=columns)
        network.head = SplitLinear(network.head, inner_group=columns, outer_group=None)
        for owner in (network, *network.blocks):
            owner.norm = SplitNorm(owner.norm, columns)
    return network


def whole(network: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of the whole network, gathered from the parts, on every rank.

    Args:
        network: a network from `split_over_grid`, or one with DTensor parameters.

    Returns:
        tensors by the names of the whole network's `state_dict`.
    """
    weights = {}
    for name, parameter in network.named_parameters():
        owner, tensor = network.get_submodule(name.rpartition(".")[0]), parameter.detach()
        groups = getattr(owner, "outer_group", None), getattr(owner, "inner_group", None)
        if isinstance(tensor, DTensor):
            tensor, groups = tensor.full_tensor(), ()
        elif name.endswith("weight") and hasattr(owner, "depth_group"):  # AxoNN's is flat
            tensor = gather(tensor, 0, owner.depth_group)
            tensor = tensor.view(owner.local_out_features, owner.local_in_features)
        for dim, group in enumerate(groups[: tensor.ndim]):
            tensor = gather(tensor, dim, group)
        weights[name] = tensor
    return weights
