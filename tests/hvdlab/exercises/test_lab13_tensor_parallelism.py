"""The checks of lab 13: right answers pass, and typical mistakes are called by their names."""

import re

import pytest
import split_blocks
import torch
from changed import changed
from split_blocks import block, f_and_g, part_of

from hvdlab.exercises import NotYet, lab13_split_block
from hvdlab.exercises import lab13_tensor_parallelism as exercises

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)

# --- exercise 1: a linear layer in parts ------------------------------------------------------------


def column_parts(x, weight, ranks):
    high = len(weight) // ranks
    return [x @ weight[k : k + high].T for k in range(0, len(weight), high)]


def row_parts(x, weight, ranks):
    wide = x.shape[1] // ranks
    return [x[:, k : k + wide] @ weight[:, k : k + wide].T for k in range(0, x.shape[1], wide)]


def test_the_right_parts_of_a_layer_are_right(capsys):
    exercises.check_parts(lambda *layer: (column_parts(*layer), row_parts(*layer)))
    assert capsys.readouterr().out.startswith("Right: ")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            lambda *a: (row_parts(*a), row_parts(*a)),
            "3 of the 6 outputs for 2 examples, and yours is (2, 6)",
        ),
        (lambda *a: (column_parts(*a), column_parts(*a)), "a partial sum for every output"),
        (lambda *a: (column_parts(*a)[::-1], row_parts(*a)), "the k-th part of the outputs"),
        (lambda x, w, n: (column_parts(x, w, n), [x @ w.T] * n), "the sum of the parts is not"),
        (
            lambda *a: column_parts(*a) + row_parts(*a),
            "must return (columns, rows). Received: list",
        ),
        (lambda *a: (None, row_parts(*a)), "columns must be a list of tensors. Received: NoneType"),
        (
            lambda x, w, n: (column_parts(x, w, n), row_parts(x, w, 1)),
            "rows on 2 ranks has 1 tensors",
        ),
    ],
)
def test_a_mistake_in_the_parts_of_a_layer_is_named(parts, says):
    with pytest.raises(NotYet, match=re.escape(says)):
        exercises.check_parts(parts)


# --- exercise 2: who holds what --------------------------------------------------------------------


def with_parts(**dims):
    """`part_of` with other dims; None leaves a tensor whole."""

    def answer(weights, rank, ranks):
        part = part_of(weights, rank, ranks)
        for name, dim in dims.items():
            name = name.replace("_", ".")
            part[name] = weights[name] if dim is None else weights[name].chunk(ranks, dim)[rank]
        return part

    return answer


def parts_in_the_same_dict(weights, rank, ranks):
    weights |= part_of(weights, rank, ranks)
    return weights


def down_bias_added_up_in_place(weights, rank, ranks):
    weights["down.bias"] /= ranks
    return part_of(weights, rank, ranks)


def test_the_right_parts_are_right(capsys):
    exercises.check_part_of(part_of)
    assert capsys.readouterr().out.startswith("Right: ")


MISTAKES[exercises.check_part_of] = [
    (with_parts(up_weight=1), r"should be \(12, 6\): the outputs of up are its rows"),
    (with_parts(down_weight=0), r"should be \(6, 12\): its inputs are its columns"),
    (with_parts(up_bias=None), r"up.bias, \(24,\) as a whole, becomes \(24,\)"),
    (with_parts(down_bias=0), "every rank needs it whole"),
    (lambda w, rank, ranks: part_of(w, 0, ranks), "rank k gets the k-th"),
    (lambda w, rank, ranks: part_of(w, rank, ranks) | {"down.bias": w["down.bias"] / ranks},
     "the same on every rank, and as it was"),
    (lambda w, rank, ranks: w | {"up.weight": w["up.weight"].chunk(ranks)},
     r"up.weight of rank 0 is a tuple.* `\[rank\]` takes one"),
    (lambda w, rank, ranks: {"up.weight": w["up.weight"]}, "the six names"),
    (lambda w, rank, ranks: None, "has None"),
    (lambda w, rank, ranks: w["up"], "raises KeyError: 'up'"),
    (parts_in_the_same_dict, "part_of changes the dict of weights"),
    (down_bias_added_up_in_place, "part_of changes the dict of weights"),
    (lambda w, rank, ranks: {name: w.pop(name) for name in list(w)}, "put the parts into a new"),
]  # fmt: skip


# --- exercise 2: f and g ---------------------------------------------------------------------------


def exchanged():
    from hvdlab.torch.model_parallel.tensor_parallel_layers import Reduce

    return lambda x: Reduce.apply(x, None), lambda x: Reduce.apply(x, None)


def no_backward():
    from hvdlab.torch.model_parallel.tensor_parallel_layers import Reduce

    return lambda x: x, lambda x: Reduce.apply(x, None)


def both_ways():
    from hvdlab.torch.model_parallel.tensor_parallel_layers import Copy, Reduce

    return lambda x: Copy.apply(x, None), lambda x: Copy.apply(Reduce.apply(x, None), None)


def in_place():
    import torch.distributed as dist

    from hvdlab.torch.model_parallel.tensor_parallel_layers import Copy, Reduce

    class InPlace(Reduce):
        @staticmethod
        def forward(ctx, x, group):
            dist.all_reduce(x)
            return x

    return lambda x: Copy.apply(x, None), lambda x: InPlace.apply(x, None)


def gradient_in_place():
    import torch.distributed as dist

    from hvdlab.torch.model_parallel.tensor_parallel_layers import Copy, Reduce

    class InPlace(Copy):
        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.contiguous()
            dist.all_reduce(gradient)
            return gradient, None

    return lambda x: InPlace.apply(x, None), lambda x: Reduce.apply(x, None)


@pytest.mark.mpi
@pytest.mark.thorough
def test_the_right_pair_is_right(capsys):
    exercises.check_f_and_g(f_and_g)
    assert "f sums in the backward pass" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (exchanged, "f's forward pass all-reduces"),
        pytest.param(
            no_backward,
            "f's backward pass returns the gradient unchanged",
            marks=pytest.mark.thorough,
        ),
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


FOUND = {
    "block": None,
    "bias_on_every_rank": "bias on every rank",
    "partial_sums": "partial sums",
    "no_f": "no f",
    "f_before_the_norm": "f before the norm",
    "f_before_the_residual": "f before the residual",
    "all_reduce_both_ways": "all-reduce in g's backward pass",
    "no_residual": "no residual",
    "no_bias": "no bias",
    "another_output": "another output",
}


@pytest.fixture(scope="module")
def rows():
    """What both ranks see of each block, from one start of the ranks."""
    names = [*FOUND, "g_twice", "nothing"]
    blocks = [getattr(split_blocks, name) for name in names]
    return dict(zip(names, lab13_split_block._try_blocks(blocks, part_of, f_and_g), strict=True))


@pytest.mark.mpi
@pytest.mark.parametrize("name", FOUND)
def test_every_mistake_has_its_name(name, rows):
    assert lab13_split_block._mistake(rows[name])[0] == FOUND[name]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_f", "no f: the output is right, but the gradients of x and of norm.weight"),
        ("bias_on_every_rank", "off by exactly the bias of down: .* summed 2 times"),
        ("g_twice", "g 2 times: call each once"),
        ("nothing", "on rank 0 it returns NoneType"),
    ],
)
def test_wrong_blocks_are_explained(name, says, rows, monkeypatch):
    monkeypatch.setattr(lab13_split_block, "_try_blocks", lambda *_: [rows[name]])
    with pytest.raises(NotYet, match=says):
        exercises.check_block(block, part_of, f_and_g)


def unfinished(x, part, f, g):
    raise NotImplementedError("Lab 13, exercise 3: write it")


@pytest.mark.mpi
@pytest.mark.thorough
def test_the_right_block_is_right(capsys):
    exercises.check_block(block, part_of, f_and_g)
    assert "with one all-reduce forward and one backward" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.thorough
def test_a_stub_on_the_ranks_is_no_error():
    with pytest.raises(NotImplementedError, match="exercise 3"):
        exercises.check_block(unfinished, part_of, f_and_g)


@pytest.mark.mpi
def test_a_diagnosis_is_held_against_what_the_case_does(rows, monkeypatch, capsys):
    names = "bias_on_every_rank", "no_f", "all_reduce_both_ways"
    cases = [getattr(split_blocks, name) for name in names]
    monkeypatch.setattr(
        lab13_split_block, "_try_blocks", lambda cases, *_: [rows[case.__name__] for case in cases]
    )

    def check(**changed):
        diagnosis = {name: FOUND[name] for name in names} | changed
        exercises.check_diagnosis(diagnosis, cases, part_of, f_and_g)

    check()
    assert "each case was run on 2 ranks" in capsys.readouterr().out
    with pytest.raises(NotYet, match="no_f: with 'partial sums'.* each rank's part"):
        check(no_f="partial sums")
    with pytest.raises(NotYet, match="'no idea' is none of the mistakes"):
        check(no_f="no idea")
    with pytest.raises(NotYet, match="set diagnosis to a dict"):
        exercises.check_diagnosis("no f", cases, part_of, f_and_g)


@pytest.mark.parametrize("none", [["no f"], None, 3])
def test_a_diagnosis_is_a_name(none):
    with pytest.raises(
        NotYet, match="no_f: .* is none of the mistakes: bias on every rank, partial"
    ):
        exercises.check_diagnosis({"no_f": none}, [split_blocks.no_f], part_of, f_and_g)


# --- exercise 5: the norm of a split gradient ------------------------------------------------------


def clip(split, shared, most):
    import torch.distributed as dist
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    square = get_total_norm([p.grad for p in split]) ** 2
    dist.all_reduce(square)
    norm = (square + get_total_norm([p.grad for p in shared]) ** 2).sqrt()
    clip_grads_with_norm_([*split, *shared], most, norm)
    return norm


NORM_OF_SPLIT = "get_total_norm([p.grad for p in split])"
NORM_OF_SHARED = "get_total_norm([p.grad for p in shared])"


def local(split, shared, most):
    import torch

    return torch.nn.utils.clip_grad_norm_([*split, *shared], most)


def always(split, shared, most):
    for parameter in [*split, *shared]:
        parameter.grad *= most / 13
    return 13


@pytest.mark.mpi
@pytest.mark.thorough
def test_the_right_clipping_is_right(capsys):
    exercises.check_clip(clip)
    assert "13 on every rank" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (local, "The norm over what this rank holds"),
        *(
            pytest.param(wrong, says, marks=pytest.mark.thorough)
            for wrong, says in (
                (changed(clip, NORM_OF_SPLIT, "sum(p.grad.norm() for p in split)"),
                 "is 13.6, expected 13. Norms of tensors"),
                (changed(clip, "in split]", "in split[:1]]", "in shared]", "in shared[:1]]",
                         "[*split, *shared]", "[split[0], shared[0]]"),
                 "Only the first tensor of each list"),
                (changed(clip, "[*split, *shared]", "[split[0], *shared]"),
                 "a split gradient is multiplied by 1,"),
                (changed(clip, "in split]", "in [*split, *shared]]", f" + {NORM_OF_SHARED} ** 2", ""),
                 "counted on each rank: 3 times"),
                (always, "at most 26.* multiplied by 2, and should be by 1"),
            )
        ),
    ],
)  # fmt: skip
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


MISTAKES[exercises.check_grid_bytes] = [
    (lambda b, h, r, c: grid_bytes(b, h, r, c) / 2, "half of it"),
    (lambda b, h, r, c: grid_bytes(b, h, r, c) / 4, "a quarter of it"),
    (lambda b, h, r, c: 2 * (ring(r, 16 * b * h / r) + ring(c, 4 * b * h / c)),
     "The two groups are confused"),
    (lambda b, h, r, c: 2 * (ring(c, 16 * b * h) + ring(r, 4 * b * h)), "These are whole arrays"),
    (lambda b, h, r, c: 2 * (ring(c, 4 * b * h / r) + ring(r, 4 * b * h / c)), "4 x hidden outputs"),
    (lambda b, h, r, c: 2 * (ring(c, 4 * b * h) + ring(r, 4 * b * h / c)),
     r"rows=2, columns=4\) is 1120, expected 2080. up has 4 x hidden outputs, of which a rank has 1"),
    (lambda b, h, r, c: 1120.0, "rows=2, columns=4.* is 1120"),
    (lambda b, h, r, c: 1.0, "By hand: up's outputs"),
    (lambda b, h, r, c: None, "is `return` missing"),
    (lambda b, h, r, c: grid_bytes(b, h, r, c) or 1, "no other rank to send to"),
]  # fmt: skip


def test_the_checks_leave_the_seed_of_the_learner_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    exercises.check_part_of(part_of)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
