"""Exercises 3 to 5 of lab 13: f and g, a block split among ranks, and the mistakes in wrong ones."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hvdlab.exercises import NotYet, exercise, right
from hvdlab.exercises.harness.function_exercise import Case
from hvdlab.exercises.harness.gloo_ranks import on_ranks
from hvdlab.exercises.harness.rank_exercise import RankExercise, kind
from hvdlab.torch.lab_networks import Block

if TYPE_CHECKING:
    from mpi4py import MPI

# From the name of a mistake to what a comparison with the serial block shows.
MISTAKES = {
    "bias on every rank": "the output is off by the bias of down, once for each further rank",
    "partial sums": "every rank continues with its own part of the sum: their outputs differ",
    "no f": "outputs are right, but each rank has only its part of the gradient of what comes before",
    "f before the norm": "outputs are right, but the norm's own gradients are only parts",
    "all-reduce in g's backward pass": "outputs are right and all ranks agree, but gradients are N times too "
    "large",
}


def part_of(weights, rank, ranks):
    part = dict(weights)  # the norm and the bias of down stay whole
    for name, dim in (("up.weight", 0), ("up.bias", 0), ("down.weight", 1)):
        part[name] = weights[name].chunk(ranks, dim)[rank]
    return part


# --- exercise 3: f and g ---------------------------------------------------------------------------


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


def values_and_gradients(comm: "MPI.Comm", function: Callable) -> dict[str, object]:
    """Return the results of f and g for 10^rank, and for a gradient of 10^rank."""
    pair = function()
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return {"What f_and_g returns": kind(pair)}
    f, g = pair
    row, mine = {"What f_and_g returns": "(f, g)"}, 10.0**comm.rank

    def value(tensor: torch.Tensor | None) -> object:
        """Return the number that all entries have, the list of them if they differ, or None."""
        numbers = [] if tensor is None else sorted(set(tensor.flatten().tolist()))
        return numbers[0] if len(numbers) == 1 else numbers or None

    for key, one in (("f", f), ("g", g), ("x -> f(x) + x", lambda x: f(x) + x)):
        x = torch.full((2, 3), mine, requires_grad=True)
        inner = x * 1.0
        y = one(inner)
        row[f"What {key} returns"] = value(y)
        row[f"x after {key}"] = value(inner)
        # The gradient of a plain sum has strides of 0; that of a weighted one is shared by two summands.
        loss = (y * torch.ones(2, 3)).sum() if "+" in key else y.sum()
        (loss * mine).backward()
        row[f"The gradient from {key}"] = value(x.grad)
    return row


# fmt: off
check_f_and_g = RankExercise(
    f_and_g,
    [Case((), "f returns x and sums the gradients; g sums and returns the gradient as it is. One all-reduce "
              "in each of the two, and nothing else.",
          call="on ranks 0 and 1, where x and the gradient of the result are 1 and 10,")],
    {
        "Return both functions: return f, g.":
            [("return Copy.apply, Reduce.apply", "pass"), (", Reduce.apply", "")],
        "f and g are exchanged: return f, g.": ("Copy.apply, Reduce.apply", "Reduce.apply, Copy.apply"),
        "f's forward pass all-reduces. It must return x unchanged, because every rank has it already.":
            ("x.view_as(x)", "summed(x)"),
        "f's backward pass returns the gradient unchanged. Each rank has the gradient of its part of the "
        "work only: all-reduce it.": ("summed(gradient)", "gradient"),
        "g's forward pass does not add: all-reduce there.": ("summed(x)", "x.view_as(x)"),
        "g's backward pass all-reduces. A sum passes its gradient unchanged to each summand, and all ranks "
        "have that gradient already: gradients become N times too large.":
            ("return gradient\n", "return summed(gradient)\n"),
        "dist.all_reduce writes into the tensor that it gets: g changed its input. Give it a copy, "
        "x.clone().":
            ("return summed(x)", "dist.all_reduce(x)\n            return x"),
        "With y = f(x) + x both summands get the same gradient tensor, and the all-reduce in f's backward "
        "pass wrote into it. Give it a copy: gradient.clone().":
            ("return summed(gradient)", "gradient = gradient.contiguous()\n"
             "            dist.all_reduce(gradient)\n            return gradient"),
        "That is the mean over the ranks, and f and g sum.":
            ("return tensor", "return tensor / dist.get_world_size()"),
    },
    passed="f sums in the backward pass, g in the forward pass, and neither changes what it was given.",
    observe=values_and_gradients, start=on_ranks, ranks=2,
)
# fmt: on

# --- exercise 4: a split block ----------------------------------------------------------------------


def block(x, part, f, g):
    import torch.nn.functional as F

    y = f(F.layer_norm(x, x.shape[1:], part["norm.weight"], part["norm.bias"]))
    y = F.gelu(F.linear(y, part["up.weight"], part["up.bias"]))
    return x + g(F.linear(y, part["down.weight"])) + part["down.bias"]


def output_and_gradients(comm: "MPI.Comm", function: Callable) -> dict[str, object]:
    torch.manual_seed(0)
    whole = {name: torch.randn_like(p).double() for name, p in Block(6).named_parameters()}
    x, direction = torch.randn(2, 5, 6, dtype=torch.float64)
    x.requires_grad_()
    part = {
        name: value.clone().requires_grad_()
        for name, value in part_of(whole, comm.rank, comm.size).items()
    }
    calls = []
    f, g = (
        lambda x, name=name, real=real: calls.append(name) or real(x)
        for name, real in zip("fg", f_and_g(), strict=True)
    )
    y = function(x, part, f, g)
    if not torch.is_tensor(y) or y.shape != x.shape:
        return {"What the ranks return from": getattr(y, "shape", kind(y))}
    (y * direction).sum().backward()
    gradients = {name: leaf.grad for name, leaf in {"x": x, **part}.items()}
    return {
        "What the ranks return from": "a tensor like x",
        "The output of": y.detach(),
        **{f"The gradient of {name} in": gradient for name, gradient in gradients.items()},
        "The calls of f and g in": " ".join(calls),
    }


LINEAR = 'g(F.linear(y, part["down.weight"]))'
# fmt: off
check_block = RankExercise(
    block,
    [Case((), "Compute x + down(gelu(up(norm(x)))) with f before up, and with g after down.",
          call="block on 2 ranks")],
    {
        "bias on every rank: the output is off by exactly the bias of down: each rank adds it before g, so "
        "it is summed 2 times.":
            (f'{LINEAR} + part["down.bias"]', 'g(F.linear(y, part["down.weight"], part["down.bias"]))'),
        "partial sums: the two ranks have different outputs: use what g returns.":
            [(LINEAR, LINEAR[1:]),
             ("    return", "    g(F.linear(y, part['down.weight']))\n    return", LINEAR, LINEAR[1:])],
        "no bias: the output is that of the serial block without the bias of down.":
            (' + part["down.bias"]', ""),
        "no residual: the output is that of the serial block without `x +`.": ("return x + ", "return "),
        "no gelu: the output is that of the serial block without gelu between up and down.": ("F.gelu(", "("),
        "no bias of up: the output is that of the serial block without it.": (', part["up.bias"]', ""),
        "all-reduce in g's backward pass: the output is right and the ranks agree, but the gradient of up is "
        "2 times the serial one.": (LINEAR, f"f({LINEAR})"),
        "no f: the output is right, but the gradients of x and of norm.weight are each rank's part: summed "
        "over the ranks, they are the serial ones.": ("f(F.layer", "(F.layer"),
        "f before the residual: the output is right, but in x's gradient that of `x +` is summed as well, "
        "although every rank has all of it: f belongs after the norm.":
            ("    y = f(", "    x = f(x)\n    y = ("),
        "f before the norm: the output and x's gradient are right, but that of norm.weight is each rank's "
        "part: f belongs directly before the split layers, after the norm.":
            ("f(F.layer_norm(x,", "(F.layer_norm(f(x),"),
        "Call f and g once each, for one all-reduce forward and one backward.":
            [("    return", "    g(x.sum())\n    return"), ("    return", "    f(x)\n    return")],
        "Return the output, a tensor like x.": ("return x + ", "x + "),
    },
    passed="output and all gradients as in the serial block, with one all-reduce forward and one backward.",
    observe=output_and_gradients, start=on_ranks, ranks=2,
)
# fmt: on

# --- exercise 5: the mistakes of wrong blocks -------------------------------------------------------


@exercise
def check_diagnosis(diagnosis: dict[str, str], cases: list[Callable], *_: Callable) -> None:
    """Demand the right name of the mistake of each case, which runs on 2 ranks.

    Args:
        diagnosis: from the name of a case to one of MISTAKES.
        cases: wrong blocks.
    """
    names = [case.__name__ for case in cases]
    if not isinstance(diagnosis, dict) or set(diagnosis) != set(names):
        raise NotYet(f"set diagnosis to a dict with the keys {', '.join(names)}: {diagnosis!r}")
    for name in names:
        if not isinstance(diagnosis[name], str) or diagnosis[name] not in MISTAKES:
            raise NotYet(
                f"{name}: {diagnosis[name]!r} is none of the mistakes: {', '.join(MISTAKES)}."
            )
    for name, found in zip(names, check_block.run(*cases, mistakes=True), strict=True):
        shown = next(
            (s for s, wrong in check_block.wrong if all(map(check_block.equal, found, wrong))),
            "it is no mistake of block.",
        )
        if not shown.startswith(f"{diagnosis[name]}:"):
            raise NotYet(
                f"{name}: with {diagnosis[name]!r}, {MISTAKES[diagnosis[name]]}. Compared with the serial "
                f"block on 2 ranks, this one shows something else: {shown.partition(': ')[2]}"
            )
    right("each case was run on 2 ranks, and shows the mistake that you name.")
