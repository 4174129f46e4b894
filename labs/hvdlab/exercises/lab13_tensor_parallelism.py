"""Exercises of lab 13: a block split among ranks, its collectives, and the mistakes in both."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hvdlab.exercises import NotYet, call
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.gloo_ranks import on_ranks
from hvdlab.exercises.harness.rank_exercise import RankExercise, kind, number_or_kind
from hvdlab.exercises.lab13_split_block import (
    MISTAKES,
    check_block,
    check_diagnosis,
    check_f_and_g,
    part_of,
)
from hvdlab.torch.lab_networks import Block

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "MISTAKES",
    "check_block",
    "check_clip",
    "check_diagnosis",
    "check_f_and_g",
    "check_grid_bytes",
    "check_part_of",
    "check_parts",
]

# --- exercise 1: a linear layer in parts ------------------------------------------------------------


def parts(x, weight, ranks):
    columns = [x @ part.T for part in weight.chunk(ranks, 0)]
    both = zip(x.chunk(ranks, 1), weight.chunk(ranks, 1), strict=True)
    rows = [some_x @ part.T for some_x, part in both]
    return columns, rows


def shapes_and_wholes(function: Callable, ranks: int) -> dict[str, object]:
    """Return the shapes of the parts, and what they give together."""
    x = torch.arange(12.0).reshape(2, 6)
    weight = torch.cat([x, 2 - x, x**2])  # 6 outputs, 6 inputs
    answer = call(function, x, weight, ranks, name="parts")
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        raise NotYet(f"parts must return (columns, rows). Received: {kind(answer)}")
    found = {}
    for name, tensors in zip(("columns", "rows"), answer, strict=True):
        if not isinstance(tensors, list | tuple) or not all(map(torch.is_tensor, tensors)):
            raise NotYet(f"{name} must be a list of tensors. Received: {kind(tensors)}")
        found[f"The shapes of {name} in"] = shapes = [list(tensor.shape) for tensor in tensors]
        if all(shape == shapes[0] for shape in shapes) and len(shapes[0]) == 2:
            whole = torch.cat(tensors, 1) if name == "columns" else sum(tensors)
            found[f"The whole output from {name} in"] = whole.tolist()
    return found


# fmt: off
check_parts = FunctionExercise(
    parts,
    [Case((n,), f"Side by side the {n} parts of columns are x @ weight.T, and so is the sum of the {n} parts "
                "of rows.",
          f"parts(x, weight, ranks={n}) with 2 examples, 6 inputs and 6 outputs") for n in (2, 3)],
    {
        "Each rank has a part of the outputs in columns. They are the first dimension of weight.":
            ("return columns, rows", "return rows, rows"),
        "Each rank has a partial sum for every output in rows. The inputs are the second dimension of "
        "weight.":
            ("return columns, rows", "return columns, columns"),
        "The two lists are exchanged: return columns, rows.":
            ("return columns, rows", "return rows, columns"),
        "Rank k must have the k-th part of the outputs.": ("return columns", "return columns[::-1]"),
        "Rank k multiplies the k-th part of the inputs by the k-th part of the second dimension of weight.":
            [("some_x @ part.T for some_x, part in both", "x @ weight.T for _ in both"),
             ("zip(x.chunk(ranks, 1)", "zip(x.chunk(ranks, 1)[::-1]")],
        "Each list has a tensor for each rank.": [("return columns, rows", "return columns, [sum(rows)]"),
                                                  ("return columns", "return columns[:1]")],
        "The sum of rows must be the whole output: leave the partial sums as they are, and do not divide by "
        "ranks.":
            ("some_x @ part.T", "some_x @ part.T / ranks"),
    },
    passed="concatenated outputs and added partial sums are the whole output, on 2 and 3 ranks.",
    observe=shapes_and_wholes,
)
# fmt: on

# --- exercise 2: who holds what --------------------------------------------------------------------


def shapes_and_values(function: Callable, ranks: int) -> dict[str, object]:
    """Return what each rank gets of the six tensors of a block."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weights = {name: value.detach() for name, value in Block(6).named_parameters()}
    found, of_ranks = {"The dict of weights after": "unchanged"}, []
    for rank in range(ranks):
        given, before = dict(weights), {name: value.clone() for name, value in weights.items()}
        of_ranks.append(call(function, given, rank, ranks, name="part_of"))
        same = given.keys() == weights.keys() and all(given[n] is weights[n] for n in weights)
        if not same or not all(torch.equal(weights[name], before[name]) for name in weights):
            return {"The dict of weights after": "changed"}
    names = [", ".join(part) if isinstance(part, dict) else kind(part) for part in of_ranks]
    found["The names in the dict of rank 0 from"] = names[0]
    if set(names) != {", ".join(weights)}:
        return found
    for name in weights:
        tensors = [part[name] for part in of_ranks]
        shapes = [list(t.shape) if torch.is_tensor(t) else kind(t) for t in tensors]
        found[f"The shape of {name} on rank 0 in"] = shapes[0]
        if not isinstance(shapes[0], str) and all(shape == shapes[0] for shape in shapes):
            found[f"The content of {name} in"] = torch.stack(tensors).tolist()
    return found


# fmt: off
check_part_of = FunctionExercise(
    part_of,
    [Case((n,), "up is split by its outputs, which are its rows, down by its inputs, which are its columns, "
                "and rank k gets the k-th of the parts. Every rank has all else whole.",
          f"part_of(weights, rank, ranks={n})")
     for n in (2, 3)],
    {
        "The outputs of up are its rows, and they are split, so that gelu needs no other rank.":
            ('("up.weight", 0)', '("up.weight", 1)'),
        "The inputs of down are its columns, and rank k has the inputs that its part of up computed.":
            ('("down.weight", 1)', '("down.weight", 0)'),
        "The bias of up has a number for each output, so it is split as the rows of up.":
            ('("up.bias", 0), ', ""),
        "Every rank needs the bias of down whole, because it works on all 6 features.":
            ('("down.weight", 1)', '("down.weight", 1), ("down.bias", 0)'),
        "Every rank needs the norm whole, because it works on all 6 features.":
            ('("down.weight", 1)', '("down.weight", 1), ("norm.weight", 0), ("norm.bias", 0)'),
        "Rank k gets the k-th of `ranks` parts, and yours gets the first.": ("[rank]", "[0]"),
        "The bias of down must be as it was: g sums before the bias is added.":
            ("    return part", '    part["down.bias"] = part["down.bias"] / ranks\n    return part'),
        "part_of changes the dict of weights that it is given, and the caller still needs it whole: put the "
        "parts into a new dict, and leave the tensors as they are.":
            [("dict(weights)", "weights"), ("    return", '    weights["down.bias"] /= ranks\n    return'),
             ("dict(weights)", "{name: weights.pop(name) for name in list(weights)}",
              "= weights[", "= part[")],
        "`chunk` returns all parts, and `[rank]` takes one.": ("[rank]", ""),
        "Put all six tensors into the dict, also those that stay whole.": ("dict(weights)", "{}"),
        "Return the dict.": ("return part", "pass"),
    },
    passed="up is split by rows, down by columns, and the other tensors are right, on 2 and 3 ranks.",
    observe=shapes_and_values,
)
# fmt: on

# --- exercise 6: the norm of a split gradient ------------------------------------------------------


def clip(split, shared, most):
    import torch.distributed as dist

    squares = sum(parameter.grad.square().sum() for parameter in split)
    dist.all_reduce(squares)
    norm = (squares + sum(parameter.grad.square().sum() for parameter in shared)).sqrt().item()
    for parameter in [*split, *shared]:
        parameter.grad *= min(1, most / norm)
    return norm


def norm_and_sizes(comm: "MPI.Comm", function: Callable, most: float) -> dict[str, object]:
    sizes = [*((2.0, 2.0), (4.0, 1.0), (0.0, 0.0))[comm.rank], 8.0, 8.0, 4.0]
    parameters = [torch.nn.Parameter(torch.zeros(2, 2)) for _ in sizes]
    for parameter, size in zip(parameters, sizes, strict=True):
        parameter.grad = size * torch.tensor([[0.6, 0.0], [-0.8, 0.0]])  # 0.36 + 0.64 = 1
    returned = function(parameters[:2], parameters[2:], most)
    after = [parameter.grad.norm().item() for parameter in parameters]
    return {
        "What the ranks return from": number_or_kind(returned),
        "The norms of each rank's gradients of split after": after[:2],
        "The norms of each rank's gradients of shared after": after[2:],
    }


SPLIT, SHARED = (
    f"sum(parameter.grad.square().sum() for parameter in {name})" for name in ("split", "shared")
)
NORMS = "sum(parameter.grad.norm() for parameter in {}) ** 2"
# fmt: off
check_clip = RankExercise(
    clip,
    # by hand: the parts 2^2 + 2^2, 4^2 + 1^2 and 0, what is shared 8^2 + 8^2 + 4^2, together 13^2
    [Case((most,), "The norm is the root of 8 + 17 + 0 (the parts of the ranks) + 144 (what all have), so "
                   f"13. Multiply all gradients by {factor}, and return 13.",
          f"clip on 3 ranks, at most {most},")
     for most, factor in ((6.5, 0.5), (26.0, 1))],
    {
        "The norm over what this rank holds: the other parts are missing.":
            ("    dist.all_reduce(squares)\n", ""),
        "The shared gradient is counted on each rank: 3 times.":
            (f" + {SHARED}", "", "in split)", "in [*split, *shared])"),
        "The shared gradient is missing: it counts, once.": (f" + {SHARED}", ""),
        "The square of the norm: take the root.": (".sqrt()", ""),
        "A sum of norms: squares add up, norms do not.": (".square().sum()", ".norm()", ".sqrt()", ""),
        "Norms of tensors are added up, and only their squares add up.":
            [(SPLIT, NORMS.format("split")), (SHARED, NORMS.format("shared")),
             (SPLIT, NORMS.format("split"), SHARED, NORMS.format("shared"))],
        "Only the first tensor of each list is counted.":
            ("in split)", "in split[:1])", "in shared)", "in shared[:1])"),
        "The norm 13 is right. Multiply all gradients of split.":
            ("in [*split, *shared]:", "in [split[0], *shared]:"),
        "The norm 13 is right. Multiply the gradients of shared as well.":
            ("in [*split, *shared]:", "in split:"),
        "The norm 13 is right. Multiply the gradients in place.": ("parameter.grad *=", "parameter.grad *"),
        "The norm 13 is right. Where it is allowed, leave the gradients as they are: multiply by min(1, most "
        "/ norm).":
            ("min(1, most / norm)", "most / norm"),
        "Return the norm before clipping, a number.": ("return norm", "pass"),
    },
    passed="13 on every rank for two split and three shared tensors, halved only where it is too large.",
    observe=norm_and_sizes, start=on_ranks, ranks=3, rtol=1e-5,
)
# fmt: on

# --- exercise 7: bytes on a grid -------------------------------------------------------------------


def grid_bytes(batch, hidden, rows, columns):
    def ring(ranks, nbytes):
        return 2 * (ranks - 1) / ranks * nbytes

    up, down = 4 * batch * 4 * hidden / rows, 4 * batch * hidden / columns
    return 2 * (ring(columns, up) + ring(rows, down))


# fmt: off
check_grid_bytes = FunctionExercise(
    grid_bytes,
    [
        Case((10, 8, 4, 2), "By hand: up's outputs, 4 x 10 x 32/4 = 320 bytes, over 2 columns, and down's, "
             "4 x 10 x 8/2 = 160 bytes, over 4 rows: 320 + 240, and the same backward.", expected=1120),
        Case((10, 8, 2, 4), "By hand: up's outputs, 4 x 10 x 32/2 = 640 bytes, over 4 columns, and down's, "
             "4 x 10 x 8/4 = 80 bytes, over 2 rows: 960 + 80, and the same backward.", expected=2080),
        Case((10, 8, 1, 1), "A single rank has no other rank to send to.", expected=0),
    ],
    {
        "up has 4 x hidden outputs, of which a rank has 1/rows, and you left out both.":
            ("* 4 * hidden / rows", "* hidden"),
        "That is half of it. In the backward pass the gradients of the same two arrays are sent, and an "
        "all-reduce has two phases, 2 (n-1)/n.": ("return 2 * (ring(", "return (ring("),
        "That is a quarter of it. A number has 4 bytes; the backward pass sends two more arrays; and an "
        "all-reduce has two phases.": ("return 2 * (ring(", "return 0.5 * (ring("),
        "The two groups are confused: up's outputs are summed over the columns, down's over the rows.":
            ("ring(columns, up) + ring(rows, down)", "ring(rows, up) + ring(columns, down)"),
        "The two groups are confused: up's outputs are split over the rows, and summed over the columns.":
            ("4 * hidden / rows, 4 * batch * hidden / columns",
             "4 * hidden / columns, 4 * batch * hidden / rows"),
        "These are whole arrays: a rank has 1/rows of up's outputs, and 1/columns of down's.":
            ("hidden / rows", "hidden", "hidden / columns", "hidden"),
        "up has 4 x hidden outputs.": ("* 4 * hidden", "* hidden"),
        "down's outputs are summed, too, over the rows.": (" + ring(rows, down)", ""),
    },
    passed="1120 bytes on 4 x 2 ranks by hand, 2080 on 2 x 4, and nothing on one.", meaning="of bytes",
)
# fmt: on
