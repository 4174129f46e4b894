"""The checks of lab 10, first part: right answers pass, and typical mistakes are called by their names."""

import pytest
import torch

from hvdlab.exercises import NotYet, split_block
from hvdlab.exercises import tensor_parallelism as exercises


def stub(*arguments):
    raise NotImplementedError("Lab 10, exercise 1: write it")


# --- exercise 1: who holds what --------------------------------------------------------------------


def part_of(weights, rank, ranks):
    part = dict(weights)
    for name, dim in (("up.weight", 0), ("up.bias", 0), ("down.weight", 1)):
        part[name] = weights[name].chunk(ranks, dim)[rank]
    return part


def with_parts(**dims):
    """`part_of` with other dims; None leaves a tensor whole."""

    def answer(weights, rank, ranks):
        part = part_of(weights, rank, ranks)
        for name, dim in dims.items():
            name = name.replace("_", ".")
            part[name] = weights[name] if dim is None else weights[name].chunk(ranks, dim)[rank]
        return part

    return answer


def test_the_right_parts_are_right(capsys):
    exercises.check_part_of(part_of)
    assert capsys.readouterr().out.startswith("Right: ")
    with pytest.raises(NotImplementedError):
        exercises.check_part_of(stub)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (with_parts(up_weight=1), r"should be \(12, 6\): the outputs of up are its rows"),
        (with_parts(down_weight=0), r"should be \(6, 12\): its inputs are its columns"),
        (with_parts(up_bias=None), r"up.bias, \(24,\) as a whole, becomes \(24,\)"),
        (with_parts(down_bias=0), "every rank needs it whole"),
        (lambda w, rank, ranks: part_of(w, 0, ranks), "rank k gets the k-th"),
        (
            lambda w, rank, ranks: part_of(w, rank, ranks) | {"down.bias": w["down.bias"] / ranks},
            "the same on every rank, and as it was",
        ),
        (lambda w, rank, ranks: {"up.weight": w["up.weight"]}, "the six names"),
        (lambda w, rank, ranks: None, "has None"),
        (lambda w, rank, ranks: w["up"], "raises KeyError: 'up'"),
    ],
)
def test_wrong_parts_are_explained(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_part_of(wrong)


# --- exercise 2: f and g ---------------------------------------------------------------------------


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


def exchanged():
    import torch
    import torch.distributed as dist

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = x.clone()
            dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Copy.apply, Copy.apply


def both_ways():
    import torch
    import torch.distributed as dist

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = x.clone()
            dist.all_reduce(x)
            return x

        backward = forward

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        backward = Both.forward

    return Copy.apply, Both.apply


def in_place():
    import torch
    import torch.distributed as dist

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.contiguous()
            dist.all_reduce(gradient)
            return gradient

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Copy.apply, Reduce.apply


def gradient_in_place():
    import torch
    import torch.distributed as dist

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.contiguous()
            dist.all_reduce(gradient)
            return gradient

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = x.clone()
            dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Copy.apply, Reduce.apply


def no_backward():
    import torch.distributed as dist

    def g(x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    return lambda x: x, g


@pytest.mark.mpi
def test_the_right_pair_is_right(capsys):
    exercises.check_f_and_g(f_and_g)
    assert "f sums on the way back" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (exchanged, "f's forward pass all-reduces"),
        (no_backward, "f's backward pass hands the gradient on"),
        pytest.param(both_ways, "g's backward pass all-reduces", marks=pytest.mark.thorough),
        pytest.param(
            gradient_in_place,
            "both summands get the same gradient tensor",
            marks=pytest.mark.thorough,
        ),
        pytest.param(in_place, "Give it a copy, x.clone", marks=pytest.mark.thorough),
    ],
)
def test_wrong_pairs_are_explained(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_f_and_g(wrong)


# --- exercises 3 and 4: a split block --------------------------------------------------------------


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


def partial_sums(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    g(y)
    return x + F.linear(y, part["down.weight"]) + part["down.bias"]


def no_f(x, part, f, g):
    import torch.nn.functional as F

    y = F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"])
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"])) + part["down.bias"]


def f_before_the_norm(x, part, f, g):
    import torch.nn.functional as F

    y = F.layer_norm(f(x), x.shape[1:], part["norm.weight"], part["norm.bias"])
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"])) + part["down.bias"]


def all_reduce_both_ways(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + f(g(F.linear(y, part["down.weight"]))) + part["down.bias"]


def no_residual(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return g(F.linear(y, part["down.weight"])) + part["down.bias"]


def no_bias(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"]))


def relu(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.relu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"])) + part["down.bias"]


def twice(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    g(y.sum())
    return x + g(F.linear(y, part["down.weight"])) + part["down.bias"]


def nothing(x, part, f, g):
    pass


FOUND = {
    block: None,
    bias_on_every_rank: "bias on every rank",
    partial_sums: "partial sums",
    no_f: "no f",
    f_before_the_norm: "f before the norm",
    all_reduce_both_ways: "all-reduce in g's backward pass",
    no_residual: "no residual",
    no_bias: "no bias",
    relu: "another output",
}


@pytest.fixture(scope="module")
def rows():
    """What both ranks see of each block, from one start of the ranks."""
    blocks = [*FOUND, twice, nothing]
    found = split_block._try_blocks(blocks, part_of, f_and_g)
    return {one.__name__: rows for one, rows in zip(blocks, found, strict=True)}


@pytest.mark.mpi
@pytest.mark.parametrize("one", FOUND, ids=lambda one: one.__name__)
def test_every_mistake_has_its_name(one, rows):
    assert split_block._mistake(rows[one.__name__])[0] == FOUND[one]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (no_f, "no f: the output is right, but the gradients of x and of norm.weight"),
        (bias_on_every_rank, "off by exactly the bias of down: .* summed 2 times"),
        (twice, "g 2 times: once each is enough"),
        (nothing, "on rank 0 it returns NoneType"),
    ],
)
def test_wrong_blocks_are_explained(answer, says, rows, monkeypatch):
    monkeypatch.setattr(split_block, "_try_blocks", lambda *_: [rows[answer.__name__]])
    with pytest.raises(NotYet, match=says):
        exercises.check_block(answer, part_of, f_and_g)


def unfinished(x, part, f, g):
    raise NotImplementedError("Lab 10, exercise 3: write it")


@pytest.mark.mpi
def test_the_right_block_is_right_and_a_stub_is_no_error(capsys):
    exercises.check_block(block, part_of, f_and_g)
    assert "with one all-reduce forth and one back" in capsys.readouterr().out
    with pytest.raises(NotImplementedError, match="exercise 3"):
        exercises.check_block(unfinished, part_of, f_and_g)


@pytest.mark.mpi
def test_a_diagnosis_is_held_against_what_the_case_does(rows, monkeypatch, capsys):
    cases = [bias_on_every_rank, no_f, all_reduce_both_ways]
    monkeypatch.setattr(
        split_block, "_try_blocks", lambda cases, *_: [rows[case.__name__] for case in cases]
    )

    def check(**changed):
        diagnosis = {case.__name__: FOUND[case] for case in cases} | changed
        exercises.check_diagnosis(diagnosis, cases, part_of, f_and_g)

    check()
    assert "each case was run on 2 ranks" in capsys.readouterr().out
    with pytest.raises(NotYet, match="no_f: with 'partial sums'.* each rank's share"):
        check(no_f="partial sums")
    with pytest.raises(NotYet, match="'no idea' is none of the mistakes"):
        check(no_f="no idea")
    with pytest.raises(NotYet, match="set diagnosis to a dict"):
        exercises.check_diagnosis("no f", cases, part_of, f_and_g)


# --- exercise 5: the norm of a split gradient ------------------------------------------------------


def clip(split, shared, most):
    import torch.distributed as dist

    squares = sum(parameter.grad.square().sum() for parameter in split)
    dist.all_reduce(squares)
    norm = (squares + sum(parameter.grad.square().sum() for parameter in shared)).sqrt().item()
    for parameter in [*split, *shared]:
        parameter.grad *= min(1, most / norm)
    return norm


def local(split, shared, most):
    import torch

    return torch.nn.utils.clip_grad_norm_([*split, *shared], most)


def all_counted(split, shared, most):
    import torch.distributed as dist

    squares = sum(parameter.grad.square().sum() for parameter in [*split, *shared])
    dist.all_reduce(squares)
    for parameter in [*split, *shared]:
        parameter.grad *= min(1, most / squares.sqrt().item())
    return squares.sqrt()


def always(split, shared, most):
    import torch.distributed as dist

    squares = sum(parameter.grad.square().sum() for parameter in split)
    dist.all_reduce(squares)
    norm = (squares + sum(parameter.grad.square().sum() for parameter in shared)).sqrt().item()
    for parameter in [*split, *shared]:
        parameter.grad *= most / norm
    return norm


@pytest.mark.mpi
def test_the_right_clipping_is_right(capsys):
    exercises.check_clip(clip)
    assert "13 on every rank" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (local, "The norm over what this rank holds"),
        pytest.param(all_counted, "counted on each rank: 3 times", marks=pytest.mark.thorough),
        pytest.param(
            always, "at most 26.* multiplied by 2, and should be by 1", marks=pytest.mark.thorough
        ),
    ],
)
def test_wrong_clippings_are_explained(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_clip(wrong)


# --- exercise 6: bytes on a grid -------------------------------------------------------------------


def ring(ranks, nbytes):
    return 2 * (ranks - 1) / ranks * nbytes


def grid_bytes(batch, hidden, rows, columns):
    up, down = 16 * batch * hidden / rows, 4 * batch * hidden / columns
    return 2 * (ring(columns, up) + ring(rows, down))


def test_the_right_bytes_are_right(capsys):
    exercises.check_grid_bytes(grid_bytes)
    assert "1120 bytes" in capsys.readouterr().out
    with pytest.raises(NotImplementedError):
        exercises.check_grid_bytes(stub)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda b, h, r, c: grid_bytes(b, h, r, c) / 2, "half of it"),
        (lambda b, h, r, c: grid_bytes(b, h, r, c) / 4, "a quarter of it"),
        (
            lambda b, h, r, c: 2 * (ring(r, 16 * b * h / r) + ring(c, 4 * b * h / c)),
            "the two groups are confused",
        ),
        (lambda b, h, r, c: 2 * (ring(c, 16 * b * h) + ring(r, 4 * b * h)), "whole arrays"),
        (
            lambda b, h, r, c: 2 * (ring(c, 4 * b * h / r) + ring(r, 4 * b * h / c)),
            "4 x hidden outputs",
        ),
        (lambda b, h, r, c: 1.0, "by hand: up's outputs"),
        (lambda b, h, r, c: None, "is `return` missing"),
        (lambda b, h, r, c: grid_bytes(b, h, r, c) or 1, "nobody to send to: 0 bytes, not 1"),
    ],
)
def test_wrong_bytes_are_explained(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_grid_bytes(wrong)


def test_the_checks_leave_the_seed_of_the_learner_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    exercises.check_part_of(part_of)
    assert torch.equal(torch.rand(1), expected)
