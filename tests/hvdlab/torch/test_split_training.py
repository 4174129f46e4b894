"""Training with split blocks on real ranks: the symptoms of right and wrong ones, as lab 10 shows them."""

import numpy as np
import pytest

from hvdlab.torch.split_training import BATCH, HIDDEN, LAYERS, STEPS, train


def part_of(weights, rank, ranks):
    part = dict(weights)
    for name, dim in (("up.weight", 0), ("up.bias", 0), ("down.weight", 1)):
        part[name] = weights[name].chunk(ranks, dim)[rank]
    return part


def f_and_g():
    import torch
    import torch.distributed as dist

    def summed(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(tensor)
        return tensor

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return summed(gradient)

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return summed(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Copy.apply, Reduce.apply


def block(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"])) + part["down.bias"]


def bias_on_every_rank(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"], part["down.bias"]))


def no_f(x, part, f, g):
    return block(x, part, lambda x: x, g)


def back_twice(x, part, f, g):
    return block(x, part, f, lambda x: f(g(x)))


def local(split, shared, most):
    import torch

    torch.nn.utils.clip_grad_norm_([*split, *shared], most)


@pytest.mark.mpi
@pytest.mark.data
def test_each_mistake_has_its_symptoms():
    found = train([block, bias_on_every_rank, no_f, back_twice], part_of, f_and_g)
    off = [np.abs(np.subtract(one["losses"], one["alone"])) for one in found]
    apart = [one["copies apart"] for one in found]

    assert len(found[0]["losses"]) == STEPS
    assert off[0].max() < 1e-5
    assert found[0]["weights off"] < 1e-5
    assert apart[0] == 0
    foretold = 2 * LAYERS * 4 * BATCH * HIDDEN  # two ranks: an all-reduce sends an array once
    assert foretold < found[0]["sent"] < 1.1 * foretold

    assert off[1][0] > 1e-3 and apart[1] == 0  # the bias: wrong from the first loss on
    assert off[2][0] < 1e-6 < 1e-3 < off[2].max() and apart[2] > 1e-3
    assert off[3][0] < 1e-6 < 1e-3 < off[3].max() and apart[3] == 0


@pytest.mark.mpi
@pytest.mark.data
def test_clipping_by_a_rank_alone_drives_the_copies_apart():
    (found,) = train([block], part_of, f_and_g, clip=local)
    assert found["copies apart"] > 1e-4
    assert found["losses"][0] == pytest.approx(found["alone"][0], abs=1e-6)
