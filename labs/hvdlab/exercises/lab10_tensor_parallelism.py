"""Checks of lab 10: a block split among ranks, its collectives, and what goes wrong there."""

import torch

from hvdlab import exercises
from hvdlab.exercises import NotYet, right
from hvdlab.exercises.harness.gloo_ranks import on_ranks
from hvdlab.exercises.lab10_split_block import MISTAKES, check_block, check_diagnosis
from hvdlab.exercises.lab11_cost_of_a_split import number
from hvdlab.torch.lab_networks import Block

__all__ = [
    "MISTAKES",
    "check_block",
    "check_clip",
    "check_diagnosis",
    "check_f_and_g",
    "check_grid_bytes",
    "check_part_of",
]

# --- exercise 1: who holds what --------------------------------------------------------------------


def check_part_of(part_of) -> None:
    """Demand up by its outputs (with its bias), down by its inputs, and all else whole."""
    with torch.random.fork_rng():
        weights = {name: value.detach() for name, value in Block(6).named_parameters()}
    for ranks in (2, 3):
        parts = [_part(part_of, weights, rank, ranks) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            if not isinstance(part, dict) or part.keys() != weights.keys():
                got = sorted(part) if isinstance(part, dict) else repr(part)
                raise NotYet(
                    f"return a dict with the six names of `weights`: {', '.join(weights)}. Rank {rank} of "
                    f"{ranks} has {got}."
                )
        for name in weights:
            _check_parts(name, weights[name], [part[name] for part in parts])
    right("up by rows of its matrix, down by columns, and four things decided: 2 and 3 ranks.")


def _part(part_of, weights, rank, ranks):
    """What a rank gets, if the whole weights stay whole: others are given them, too."""
    given, before = dict(weights), {name: value.clone() for name, value in weights.items()}
    part = exercises.call(part_of, given, rank, ranks)
    same = given.keys() == weights.keys() and all(given[name] is weights[name] for name in weights)
    if not same or not all(torch.equal(weights[name], before[name]) for name in weights):
        raise NotYet(
            "part_of changes the dict of weights that it is given, and the next one who cuts it needs it "
            "whole: put the parts into a new dict, and leave the tensors as they are."
        )
    return part


def _check_parts(name, value, parts):
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
            "the outputs of up are its rows, and what is split. Then gelu needs no other rank"
            if name.startswith("up")
            else "its inputs are its columns, and rank k has the inputs that its part of up made"
        )
        raise NotYet(f"{case}, and should be {tuple(wanted)}: {why}.")
    if not torch.equal(torch.cat(parts, dim), value):
        raise NotYet(
            f"{case}, as it should, but side by side the parts of ranks 0 to {ranks - 1} are not the "
            "whole: rank k gets the k-th of `ranks` parts."
        )


# --- exercise 2: f and g ---------------------------------------------------------------------------


def check_f_and_g(f_and_g) -> None:
    """Demand f: identity, gradients summed; g: sum, gradients as they are; nothing changed in place."""
    rows = on_ranks(try_pair, f_and_g.__name__, uses=(f_and_g,), ranks=2)
    for rank, row in enumerate(rows):
        mine, both = 10.0**rank, 11.0
        for key, wanted, cases in (
            ("f", mine, {
                both: "f's forward pass all-reduces. It must hand x on as it is: every rank has it already",
            }),
            ("f backward", both, {
                mine: "f's backward pass hands the gradient on as it is. Each rank has the gradient of its "
                "part of the work only: all-reduce it",
            }),
            ("g", both, {mine: "g's forward pass does not add: all-reduce there"}),
            ("x after g", mine, {
                both: "dist.all_reduce writes into the tensor that it gets: g changed its input. "
                "Give it a copy, x.clone()",
            }),
            ("g backward", mine, {
                both: "g's backward pass all-reduces. A sum hands its gradient to each summand as it is, and "
                "all ranks have that gradient already: so gradients become N times too large",
            }),
            ("f + x backward", both + mine, {
                2 * both: "with y = f(x) + x both summands get the same gradient tensor, and the all-reduce "
                "in f's backward pass wrote into it. Give it a copy: gradient.clone()",
            }),
        ):  # fmt: skip
            if row[key] != wanted:
                got = row[key]
                named = cases.get(got) if isinstance(got, float) else None
                raise NotYet(
                    f"rank 0 has 1 and rank 1 has 10; on rank {rank}, `{key}` is {got} and should be "
                    f"{wanted:g}. {named or 'One all-reduce in each of the two, and nothing else'}."
                )
    right("f sums on the way back, g on the way forth, and neither changes what it was given.")


def try_pair(comm, name):
    """On a rank: what f and g make of 10^rank, and of a gradient of 10^rank."""
    import torch

    f, g = globals()[name]()
    row, mine = {}, 10.0**comm.rank

    def value(tensor):
        """The number that all entries have; the list of them if they differ; None for no gradient."""
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


# --- exercise 5: the norm of a split gradient ------------------------------------------------------


def check_clip(clip) -> None:
    """Demand the norm over split and shared gradients, each counted once, on 3 ranks."""
    rows = on_ranks(try_clip, clip.__name__, uses=(clip,), ranks=3)
    for rank, row in enumerate(rows):
        for most, scale in ((6.5, 0.5), (26, 1.0)):
            found = row[f"{most:g}"]
            norm, case = found["norm"], f"rank {rank} of 3, at most {most:g}"
            # by hand: the parts 2^2 + 2^2, 4^2 + 1^2 and 0, what is shared 8^2 + 8^2 + 4^2, together 13^2
            local = (144 + (8, 17, 0)[rank]) ** 0.5
            if norm is None:
                raise NotYet(f"{case}: it returns no number: return the norm before clipping.")
            for wrong, says in (
                (local, "the norm over what this rank holds: the other parts are missing"),
                ((25 + 3 * 144) ** 0.5, "the shared gradient is counted on each rank: 3 times"),
                (5.0, "the shared gradient is missing: it counts, once"),
                (169.0, "the square of the norm: take the root"),
                (2 + 2 + 4 + 1 + 8 + 8 + 4, "a sum of norms: squares add up, norms do not"),
                *(
                    (square**0.5, "norms of tensors are added up, and only their squares add up")
                    for square in (4**2 + 5**2 + 20**2, 4**2 + 5**2 + 144, 25 + 20**2)
                ),
                ((4 + 16 + 64) ** 0.5, "only the first tensor of each list is counted"),
            ):
                if abs(norm - wrong) < 1e-4:
                    raise NotYet(
                        f"{case}: the norm is {norm:.4g}, and of the whole gradient it is 13. "
                        f"{says.capitalize()}."
                    )
            if abs(norm - 13) > 1e-4:
                raise NotYet(
                    f"{case}: the norm is {norm:.4g}; by hand it is 13, the root of 8 + 17 + 0 (the parts of "
                    "the ranks) + 144 (what all have)."
                )
            for at, factor in enumerate(found["factors"]):
                if factor is not None and abs(factor - scale) > 1e-4:
                    kind = "split" if at < 2 else "shared"
                    raise NotYet(
                        f"{case}: the norm 13 is right, but a {kind} gradient is multiplied by "
                        f"{factor:.3g}, and should be by {scale:g}."
                    )
    right(
        "13 on every rank for two split and three shared tensors, halved only where it is too long."
    )


def try_clip(comm, name):
    """On a rank: the norm that it finds, and what it multiplies gradients by, for two limits."""
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


# --- exercise 6: bytes on a grid -------------------------------------------------------------------


def check_grid_bytes(grid_bytes) -> None:
    """Demand 2 (forth and back) x 4 bytes x ring over columns of 4 hidden / rows and the other way round."""
    ring = {2: 1.0, 4: 1.5}  # 2 (n-1)/n
    for rows, columns in ((4, 2), (2, 4)):  # two grids: with four rows the 4 of 4 hidden is lost
        case = f"grid_bytes(batch=10, hidden=8, rows={rows}, columns={columns})"
        got = number(exercises.call(grid_bytes, 10, 8, rows, columns), case)
        up, down = 1280, 320  # bytes of the outputs, whole: 4 x 10 x 32, 4 x 10 x 8
        over_columns, over_rows = ring[columns], ring[rows]
        forth = over_columns * up / rows + over_rows * down / columns
        for wrong, says in (
            (2 * (over_columns * up / 4 + over_rows * down / columns),
             f"up has 4 x hidden outputs, of which a rank has 1/rows, here 1/{rows}"),
            (forth, "half of it. Back, the gradients of the same two arrays travel, and an all-reduce has "
             "two phases, 2 (n-1)/n"),
            (forth / 2, "a quarter of it. A number has 4 bytes; back, two more arrays travel; and an "
             "all-reduce has two phases"),
            (2 * (over_rows * up / rows + over_columns * down / columns),
             "the two groups are confused: up's outputs are summed over the columns, down's over the rows"),
            (2 * (over_rows * up / columns + over_columns * down / rows), "the two groups are confused: up's "
             "outputs are split over the rows, and summed over the columns"),
            (2 * (over_columns * up + over_rows * down), "these are whole arrays: a rank has 1/rows of up's "
             "outputs, and 1/columns of down's"),
            (2 * (over_columns * up / 4 / rows + over_rows * down / columns), "up has 4 x hidden outputs"),
        ):  # fmt: skip
            if abs(got - wrong) < 1e-6 and wrong != 2 * forth:
                raise NotYet(f"{case} is {got:g}: {says}.")
        if abs(got - 2 * forth) > 1e-6:
            raise NotYet(
                f"{case} is {got:g}; by hand: up's outputs, 4 x 10 x 32/{rows} = {up // rows} bytes, over "
                f"{columns} columns, and down's, 4 x 10 x 8/{columns} = {down // columns} bytes, over {rows} "
                f"rows: {over_columns * up / rows:g} + {over_rows * down / columns:g}, and the same back: "
                f"{2 * forth:g}."
            )
    if exercises.call(grid_bytes, 10, 8, 1, 1) != 0:
        raise NotYet("one rank has nobody to send to: grid_bytes(10, 8, 1, 1) shall be 0.")
    right("1120 bytes on 4 x 2 ranks by hand, 2080 on 2 x 4, and nothing on one.")
