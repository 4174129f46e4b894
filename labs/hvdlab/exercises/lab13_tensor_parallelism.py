"""Checks of lab 13: a block split among ranks, its collectives, and the mistakes in both."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hvdlab.exercises import NotYet, call, compare, exercise, number, right
from hvdlab.exercises.harness.gloo_ranks import on_ranks
from hvdlab.exercises.lab13_split_block import MISTAKES, check_block, check_diagnosis
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


@exercise
def check_parts(parts: Callable) -> None:
    """Demand outputs that concatenate to the whole, and partial sums that add up to it, on 2 and 3 ranks.

    Args:
        parts: The learner's `parts(x, weight, ranks)`, which returns two lists of tensors.
    """
    numbers = torch.arange(12.0).reshape(2, 6)
    for ranks in (2, 3):
        x, weight = numbers, torch.cat([numbers, 2 - numbers, numbers**2])  # 6 inputs, 6 outputs
        whole = x @ weight.T
        columns, rows = _lists_of(parts, x, weight, ranks)
        if columns[0].shape != (2, 6 // ranks):
            raise NotYet(
                f"columns on {ranks} ranks: a rank has {6 // ranks} of the 6 outputs for 2 examples, "
                f"and yours is {tuple(columns[0].shape)}. The outputs are the first dimension of weight."
            )
        if not torch.equal(torch.cat(columns, 1), whole):
            raise NotYet(
                f"columns on {ranks} ranks: side by side the parts are not x @ weight.T. Rank k must "
                "have the k-th part of the outputs."
            )
        if rows[0].shape != whole.shape:
            raise NotYet(
                f"rows on {ranks} ranks: each rank has a partial sum for every output, so (2, 6), and "
                f"yours is {tuple(rows[0].shape)}. The inputs are the second dimension of weight."
            )
        if not torch.equal(sum(rows), whole):
            raise NotYet(
                f"rows on {ranks} ranks: the sum of the parts is not x @ weight.T. Rank k multiplies "
                "the k-th part of the inputs by the k-th part of the second dimension of weight."
            )
    right("concatenated outputs and added partial sums are the whole output, on 2 and 3 ranks.")


def _lists_of(parts: Callable, x: torch.Tensor, weight: torch.Tensor, ranks: int) -> list[list]:
    """Return what the learner's function returns, if it is two lists of one tensor for each rank."""
    answer = call(parts, x, weight, ranks)
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        raise NotYet(f"parts must return (columns, rows). Received: {type(answer).__name__}")
    for name, found in zip(("columns", "rows"), answer, strict=True):
        if not isinstance(found, list | tuple) or not all(map(torch.is_tensor, found)):
            raise NotYet(f"{name} must be a list of tensors. Received: {type(found).__name__}")
        if len(found) != ranks:
            raise NotYet(f"{name} on {ranks} ranks has {len(found)} tensors: one for each rank.")
    return [list(found) for found in answer]


# --- exercise 2: who holds what --------------------------------------------------------------------


@exercise
def check_part_of(part_of: Callable) -> None:
    """Demand up split by its outputs (with its bias), down by its inputs, and all else whole.

    Args:
        part_of: The learner's `part_of(weights, rank, ranks)`, which returns a dict of tensors.
    """
    with torch.random.fork_rng():
        weights = {name: value.detach() for name, value in Block(6).named_parameters()}
    for ranks in (2, 3):
        parts = [_part(part_of, weights, rank, ranks) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            if not isinstance(part, dict) or part.keys() != weights.keys():
                received = sorted(part) if isinstance(part, dict) else repr(part)
                raise NotYet(
                    f"return a dict with the six names of `weights`: {', '.join(weights)}. Rank {rank} of "
                    f"{ranks} has {received}."
                )
        for name in weights:
            _check_parts(name, weights[name], [part[name] for part in parts])
    right(
        "up is split by rows, down by columns, and the other tensors are right, on 2 and 3 ranks."
    )


def _part(part_of: Callable, weights: dict[str, torch.Tensor], rank: int, ranks: int) -> object:
    """Return what a rank gets; raise NotYet if `part_of` changes the weights that it is given."""
    given, before = dict(weights), {name: value.clone() for name, value in weights.items()}
    part = call(part_of, given, rank, ranks)
    same = given.keys() == weights.keys() and all(given[name] is weights[name] for name in weights)
    if not same or not all(torch.equal(weights[name], before[name]) for name in weights):
        raise NotYet(
            "part_of changes the dict of weights that it is given, and the caller still needs it whole: put "
            "the parts into a new dict, and leave the tensors as they are."
        )
    return part


def _check_parts(name: str, value: torch.Tensor, parts: list[object]) -> None:
    ranks, dim = len(parts), {"up.weight": 0, "up.bias": 0, "down.weight": 1}.get(name)
    for rank, part in enumerate(parts):
        if not torch.is_tensor(part):
            raise NotYet(
                f"{name} of rank {rank} is a {type(part).__name__}, and should be a tensor: `chunk` returns "
                "all parts, and `[rank]` takes one."
            )
    shapes = [tuple(part.shape) for part in parts]
    case = f"{name}, {tuple(value.shape)} as a whole, becomes {shapes[0]} on rank 0 of {ranks}"
    if dim is None:
        if shapes[0] != tuple(value.shape):
            raise NotYet(
                f"{case}: every rank needs it whole, because it works on all {value.shape[0]} features."
            )
        if not all(torch.equal(part, value) for part in parts):
            raise NotYet(
                f"{name} must be the same on every rank, and as it was: g sums before the bias is added."
            )
        return
    wanted = list(value.shape)
    wanted[dim] //= ranks
    if shapes[0] != tuple(wanted):
        why = (
            "the outputs of up are its rows, and they are split, so that gelu needs no other rank"
            if name.startswith("up")
            else "its inputs are its columns, and rank k has the inputs that its part of up computed"
        )
        raise NotYet(f"{case}, and should be {tuple(wanted)}: {why}.")
    if not torch.equal(torch.cat(parts, dim), value):
        raise NotYet(
            f"{case}, as it should, but side by side the parts of ranks 0 to {ranks - 1} are not the "
            "whole: rank k gets the k-th of `ranks` parts."
        )


# --- exercise 3: f and g ---------------------------------------------------------------------------


@exercise
def check_f_and_g(f_and_g: Callable) -> None:
    """Demand f: identity, gradients summed; g: sum, gradients unchanged; nothing changed in place.

    Args:
        f_and_g: The learner's `f_and_g()`, which returns the two functions.
    """
    rows = on_ranks(try_pair, f_and_g.__name__, uses=(f_and_g,), ranks=2)
    both = 11.0
    for rank, row in enumerate(rows):
        own = 10.0**rank
        for key, expected, wrong, mistake in (
            ("f", own, both, "f's forward pass all-reduces. It must return x unchanged, because every rank "
             "has it already."),
            ("f backward", both, own, "f's backward pass returns the gradient unchanged. Each rank has the "
             "gradient of its part of the work only: all-reduce it."),
            ("g", both, own, "g's forward pass does not add: all-reduce there."),
            ("x after g", own, both, "dist.all_reduce writes into the tensor that it gets: g changed its "
             "input. Give it a copy, x.clone()."),
            ("g backward", own, both, "g's backward pass all-reduces. A sum passes its gradient unchanged to "
             "each summand, and all ranks have that gradient already: gradients become N times too large."),
            ("f + x backward", both + own, 2 * both, "With y = f(x) + x both summands get the same gradient "
             "tensor, and the all-reduce in f's backward pass wrote into it. Give it a copy: "
             "gradient.clone()."),
        ):  # fmt: skip
            case = f"rank 0 has 1 and rank 1 has 10; on rank {rank}, `{key}`"
            otherwise = "One all-reduce in each of the two, and nothing else."
            if row[key] is None:
                raise NotYet(f"{case} is None, expected {expected:g}. {otherwise}")
            compare(case, row[key], expected, {mistake: wrong}, otherwise)
    right(
        "f sums in the backward pass, g in the forward pass, and neither changes what it was given."
    )


def try_pair(comm: "MPI.Comm", name: str) -> dict[str, object]:
    """Return, on a rank, the results of f and g for 10^rank, and for a gradient of 10^rank.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
    """
    import torch

    f, g = globals()[name]()
    row, mine = {}, 10.0**comm.rank

    def value(tensor: object) -> object:
        """Return the number that all entries have, the list of them if they differ, or None."""
        numbers = [] if tensor is None else sorted(set(tensor.flatten().tolist()))
        return numbers[0] if len(numbers) == 1 else numbers or None

    for key, function in (("f", f), ("g", g), ("f + x", lambda x: f(x) + x)):
        x = torch.full((2, 3), mine, requires_grad=True)
        inner = x * 1.0
        y = function(inner)
        row[key], row[f"x after {key}"] = value(y), value(inner)
        # The gradient of a plain sum has strides of 0; that of a weighted one is shared by two summands.
        loss = (y * torch.ones(2, 3)).sum() if key == "f + x" else y.sum()
        (loss * mine).backward()
        row[f"{key} backward"] = value(x.grad)
    return row


# --- exercise 6: the norm of a split gradient ------------------------------------------------------


@exercise
def check_clip(clip: Callable) -> None:
    """Demand the norm over split and shared gradients, each counted once, on 3 ranks.

    Args:
        clip: The learner's `clip(split, shared, most)`, which returns the norm before clipping.
    """
    rows = on_ranks(try_clip, clip.__name__, uses=(clip,), ranks=3)
    for rank, row in enumerate(rows):
        # by hand: the parts 2^2 + 2^2, 4^2 + 1^2 and 0, what is shared 8^2 + 8^2 + 4^2, together 13^2
        own, shared, split = (8, 17, 0)[rank], 144, 25
        mistakes = {
            "The norm over what this rank holds: the other parts are missing.": (shared + own) ** 0.5,
            "The shared gradient is counted on each rank: 3 times.": (split + 3 * shared) ** 0.5,
            "The shared gradient is missing: it counts, once.": 5.0,
            "The square of the norm: take the root.": 169.0,
            "A sum of norms: squares add up, norms do not.": 2 + 2 + 4 + 1 + 8 + 8 + 4,
            "Norms of tensors are added up, and only their squares add up.":
                [(4**2 + 5**2 + 20**2) ** 0.5, (4**2 + 5**2 + shared) ** 0.5, (split + 20**2) ** 0.5],
            "Only the first tensor of each list is counted.": (4 + 16 + 64) ** 0.5,
        }  # fmt: skip
        by_hand = (
            "By hand it is the root of 8 + 17 + 0 (the parts of the ranks) + 144 (what all have)."
        )
        for most, scale in ((6.5, 0.5), (26, 1.0)):
            result, case = row[f"{most:g}"], f"rank {rank} of 3, at most {most:g}: the norm"
            if result["norm"] is None:
                raise NotYet(f"{case} is not a number: return the norm before clipping.")
            compare(case, result["norm"], 13, mistakes, by_hand, rtol=1e-5)
            for index, factor in enumerate(result["factors"]):
                if factor is not None and abs(factor - scale) > 1e-4:
                    kind = "split" if index < 2 else "shared"
                    raise NotYet(
                        f"{case} 13 is right, but a {kind} gradient is multiplied by {factor:.3g}, and "
                        f"should be by {scale:g}."
                    )
    right(
        "13 on every rank for two split and three shared tensors, halved only where it is too large."
    )


def try_clip(comm: "MPI.Comm", name: str) -> dict[str, dict]:
    """Return, on a rank, the norm and the factors of the gradients, for two limits.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
    """
    import torch

    row, sizes = {}, [*((2.0, 2.0), (4.0, 1.0), (0.0, 0.0))[comm.rank], 8.0, 8.0, 4.0]
    for most in (6.5, 26):
        parameters = [torch.nn.Parameter(torch.zeros(2, 2)) for _ in sizes]
        for parameter, size in zip(parameters, sizes, strict=True):
            parameter.grad = size * torch.tensor([[0.6, 0.0], [-0.8, 0.0]])  # 0.36 + 0.64 = 1
        norm = globals()[name](parameters[:2], parameters[2:], most)
        row[f"{most:g}"] = {
            "norm": None if norm is None else float(norm),
            "factors": [  # None: a gradient of zeros shows none
                parameter.grad[0, 0].item() / (0.6 * size) if size else None
                for parameter, size in zip(parameters, sizes, strict=True)
            ],
        }
    return row


# --- exercise 7: bytes on a grid -------------------------------------------------------------------


@exercise
def check_grid_bytes(grid_bytes: Callable) -> None:
    """Demand 2 (forward and backward) x 4 bytes x ring over columns of 4 hidden / rows, and vice versa.

    Args:
        grid_bytes: The learner's `grid_bytes(batch, hidden, rows, columns)`.
    """
    ring = {2: 1.0, 4: 1.5}  # 2 (n-1)/n
    up, down = 1280, 320  # bytes of the outputs, whole: 4 x 10 x 32, 4 x 10 x 8
    for rows, columns in ((4, 2), (2, 4)):  # two grids: with four rows the 4 of 4 hidden is lost
        case = f"grid_bytes(batch=10, hidden=8, rows={rows}, columns={columns})"
        answer = number(call(grid_bytes, 10, 8, rows, columns), case)
        over_columns, over_rows = ring[columns], ring[rows]
        forward = over_columns * up / rows + over_rows * down / columns
        mistakes = {
            f"up has 4 x hidden outputs, of which a rank has 1/rows, here 1/{rows}.":
                2 * (over_columns * up / 4 + over_rows * down / columns),
            "That is half of it. In the backward pass the gradients of the same two arrays are sent, and an "
            "all-reduce has two phases, 2 (n-1)/n.": forward,
            "That is a quarter of it. A number has 4 bytes; the backward pass sends two more arrays; and an "
            "all-reduce has two phases.": forward / 2,
            "The two groups are confused: up's outputs are summed over the columns, down's over the rows.":
                2 * (over_rows * up / rows + over_columns * down / columns),
            "The two groups are confused: up's outputs are split over the rows, and summed over the columns.":
                2 * (over_rows * up / columns + over_columns * down / rows),
            "These are whole arrays: a rank has 1/rows of up's outputs, and 1/columns of down's.":
                2 * (over_columns * up + over_rows * down),
            "up has 4 x hidden outputs.": 2 * (over_columns * up / 4 / rows + over_rows * down / columns),
        }  # fmt: skip
        compare(
            case, answer, 2 * forward, mistakes,
            f"By hand: up's outputs, 4 x 10 x 32/{rows} = {up // rows} bytes, over {columns} columns, and "
            f"down's, 4 x 10 x 8/{columns} = {down // columns} bytes, over {rows} rows: "
            f"{over_columns * up / rows:g} + {over_rows * down / columns:g}, and the same backward.",
        )  # fmt: skip
    alone = "A single rank has no other rank to send to."
    compare("grid_bytes(10, 8, 1, 1)", call(grid_bytes, 10, 8, 1, 1), 0, otherwise=alone)
    right("1120 bytes on 4 x 2 ranks by hand, 2080 on 2 x 4, and nothing on one.")
