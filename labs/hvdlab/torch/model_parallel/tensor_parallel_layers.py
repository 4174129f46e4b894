"""Layers that are split over a grid of ranks, by hand: Megatron-LM's (one column), and AxoNN's (several).

    network = split_over_grid(ResidualMLP(), rows, columns)     # process groups
    weights = whole(network)                                    # gathered again

Up's outputs are split over the rows and its inputs over the columns, down's the other way round. With
one column nothing but the blocks is split: Shoeybi et al., Megatron-LM, 2019, arXiv:1909.08053. With more,
every product is a partial sum: Singh et al., A 4D Hybrid Algorithm to Scale Parallel Training to Thousands
of GPUs, 2023, arXiv:2305.13525.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F


class Copy(torch.autograd.Function):
    """Megatron's f. All ranks have the same x and use it for a part of the work."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # each part of the work has its share of the gradient
        gradient = gradient.clone(memory_format=torch.contiguous_format)  # `+` shares it
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Reduce(torch.autograd.Function):
    """Megatron's g. Each rank has a part of a sum, and all go on with the whole."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):  # of a sum: the same for each summand
        return gradient, None


def part(tensor, dim, group):
    """This rank's part; None as a group: nobody to share with."""
    if group is None:
        return tensor.detach().clone()
    chunks = tensor.detach().chunk(dist.get_world_size(group), dim)
    return chunks[dist.get_rank(group)].clone(memory_format=torch.contiguous_format)


def gather(tensor, dim, group):
    """The whole, from the parts of all ranks of a group."""
    if group is None:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, dim)


class SplitLinear(nn.Module):
    """y = x W^T + b: the inputs are split over one group of ranks, the outputs over another."""

    def __init__(self, linear, inner_group, outer_group):
        super().__init__()
        self.inner_group, self.outer_group = inner_group, outer_group
        self.weight = nn.Parameter(part(part(linear.weight, 0, outer_group), 1, inner_group))
        self.bias = nn.Parameter(part(linear.bias, 0, outer_group))

    def forward(self, x):
        if self.outer_group:
            x = Copy.apply(x, self.outer_group)
        y = F.linear(x, self.weight)
        if self.inner_group:
            y = Reduce.apply(y, self.inner_group)
        return y + self.bias  # after the sum: it must be added once


class SplitNorm(nn.Module):
    """Layer normalisation of features that are split: only the two sums travel."""

    def __init__(self, norm, group):
        super().__init__()
        self.outer_group, self.width, self.eps = group, len(norm.weight), norm.eps
        self.weight = nn.Parameter(part(norm.weight, 0, group))
        self.bias = nn.Parameter(part(norm.bias, 0, group))

    def mean(self, x):
        """Over all features. Every rank needs the sum, and the gradient comes from every rank."""
        total = Copy.apply(
            Reduce.apply(x.sum(-1, keepdim=True), self.outer_group), self.outer_group
        )
        return total / self.width

    def forward(self, x):
        x = x - self.mean(x)
        return x * torch.rsqrt(self.mean(x**2) + self.eps) * self.weight + self.bias


def split_over_grid(network, rows, columns, linear=SplitLinear):
    """Split each block's up (outputs over the rows, inputs over the columns) and down (the reverse).

    Between the blocks the features are split over the columns. In a grid of one column they are whole, as
    are the norms, the stem and the head.
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


def whole(network):
    """The weights of the whole network, from the parts: a dict as `state_dict`'s, on every rank."""
    found = {}
    for name, parameter in network.named_parameters():
        owner, tensor = network.get_submodule(name.rpartition(".")[0]), parameter.detach()
        groups = getattr(owner, "outer_group", None), getattr(owner, "inner_group", None)
        if isinstance(tensor, DTensor):
            tensor, groups = tensor.full_tensor(), ()
        elif name.endswith("weight") and hasattr(owner, "depth_group"):  # AxoNN keeps it flat
            tensor = gather(tensor, 0, owner.depth_group)
            tensor = tensor.view(owner.local_out_features, owner.local_in_features)
        for dim, group in enumerate(groups[: tensor.ndim]):
            tensor = gather(tensor, dim, group)
        found[name] = tensor
    return found
