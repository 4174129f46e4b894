"""Checks of lab 13, exercises 4 and 5: compare a split block with the serial one, and name its mistake."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hvdlab.exercises import NotYet, exercise, right
from hvdlab.exercises.harness.gloo_ranks import on_ranks

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

CLOSE = 1e-9  # the checks compute in double precision

# From the name of a mistake to what a comparison with the serial block shows.
MISTAKES = {
    "bias on every rank": "the output is off by the bias of down, once for each further rank",
    "partial sums": "every rank continues with its own part of the sum: their outputs differ",
    "no f": "outputs are right, but each rank has only its part of the gradient of what comes before",
    "f before the norm": "outputs are right, but the norm's own gradients are only parts",
    "all-reduce in g's backward pass": "outputs are right and all ranks agree, but gradients are N times "
    "too large",
}


@exercise
def check_block(block: Callable, part_of: Callable, f_and_g: Callable) -> None:
    """Demand the serial block's output and gradients on 2 ranks, with one f and one g.

    Args:
        block: The learner's `block(x, part, f, g)`.
        part_of: The learner's function of exercise 2.
        f_and_g: The learner's function of exercise 3.
    """
    rows = _try_blocks([block], part_of, f_and_g)[0]
    if problem := _unusable(rows):
        raise NotYet(problem)
    mistake, symptom = _mistake(rows)
    if mistake:
        raise NotYet(f"{mistake}: {symptom}.")
    if [rows[0]["f"], rows[0]["g"]] != [1, 1]:
        raise NotYet(
            f"outputs and gradients are right, but f is called {rows[0]['f']} times and g {rows[0]['g']} "
            "times: call each once, for one all-reduce forward and one backward."
        )
    right(
        "output and all gradients as in the serial block, with one all-reduce forward and one backward."
    )


@exercise
def check_diagnosis(
    diagnosis: dict[str, str], cases: list[Callable], part_of: Callable, f_and_g: Callable
) -> None:
    """Demand the right name of the mistake of each case, which runs on 2 ranks.

    Args:
        diagnosis: From the name of a case to one of MISTAKES.
        cases: Wrong blocks.
        part_of: The learner's function of exercise 2.
        f_and_g: The learner's function of exercise 3.
    """
    names = [case.__name__ for case in cases]
    if not isinstance(diagnosis, dict) or set(diagnosis) != set(names):
        raise NotYet(f"set diagnosis to a dict with the keys {', '.join(names)}: {diagnosis!r}")
    for name in names:
        if not isinstance(diagnosis[name], str) or diagnosis[name] not in MISTAKES:
            raise NotYet(
                f"{name}: {diagnosis[name]!r} is none of the mistakes: {', '.join(MISTAKES)}."
            )
    for name, rows in zip(names, _try_blocks(cases, part_of, f_and_g), strict=True):
        mistake, symptom = _mistake(rows)
        if diagnosis[name] != mistake:
            raise NotYet(
                f"{name}: with {diagnosis[name]!r}, {MISTAKES[diagnosis[name]]}. Compared with the "
                f"serial block on 2 ranks, this one shows something else: {symptom}."
            )
    right("each case was run on 2 ranks, and shows the mistake that you name.")


def _try_blocks(blocks: list[Callable], part_of: Callable, f_and_g: Callable) -> list[tuple]:
    names = [block.__name__ for block in blocks]
    helpers = part_of, f_and_g
    rows = on_ranks(
        try_blocks,
        names,
        *(helper.__name__ for helper in helpers),
        uses=(*blocks, *helpers),
        ranks=2,
    )
    return list(zip(*rows, strict=True))  # for each block, a row of each rank


def off(ours: "torch.Tensor", theirs: "torch.Tensor") -> float:
    """Return the largest difference of two tensors over the largest value of the second one."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def counting(function: Callable, calls: dict[str, int], key: str) -> Callable:
    """Return a function of a tensor that counts its calls in `calls[key]`."""

    def counted(x: "torch.Tensor") -> "torch.Tensor":
        calls[key] += 1
        return function(x)

    return counted


def try_blocks(
    comm: "MPI.Comm", blocks: list[str], part_of: str, f_and_g: str
) -> list[dict[str, object]]:
    """Return, on a rank, how each split block differs from the serial one.

    `output` and the gradients are relative: the largest difference over the largest value. `share` is
    the same after the gradients of all ranks were added up, `ratio` the median of ours over serial.

    Args:
        comm: The communicator of all ranks.
        blocks: The names of the blocks.
        part_of: The name of the learner's function of exercise 1.
        f_and_g: The name of the learner's function of exercise 2.
    """
    import torch
    import torch.distributed as dist

    from hvdlab.exercises.lab13_split_block import counting, off
    from hvdlab.torch.lab_networks import Block

    part_of, (f, g) = globals()[part_of], globals()[f_and_g]()
    torch.manual_seed(0)
    serial = Block(6).double()
    for parameter in serial.parameters():
        torch.nn.init.normal_(parameter)  # a norm that has trained is no longer 1 and 0
    x, direction = torch.randn(2, 5, 6, dtype=torch.float64)
    x.requires_grad_()
    whole = dict(serial.named_parameters())
    expected = serial(x)
    gradients = dict(zip(["x", *whole], torch.autograd.grad(
        (expected * direction).sum(), [x, *whole.values()]), strict=True))  # fmt: skip
    wanted = {"x": gradients.pop("x"), **part_of(gradients, comm.rank, comm.size)}

    rows = []
    for name in blocks:
        calls = {"f": 0, "g": 0}
        mine = x.detach().clone().requires_grad_()
        part = {
            key: value.detach().clone().requires_grad_()
            for key, value in part_of(whole, comm.rank, comm.size).items()
        }
        y = globals()[name](mine, part, counting(f, calls, "f"), counting(g, calls, "g"))
        if not torch.is_tensor(y) or y.shape != x.shape:
            rows.append({"kind": type(y).__name__, "shape": list(getattr(y, "shape", []))})
            continue
        row = {"kind": "Tensor", "shape": list(y.shape), **calls, "output": off(y, expected)}
        extra = (comm.size - 1) * whole["down.bias"]
        row["extra bias"] = off(y - expected + 1, 1 + extra.expand_as(y))
        row["no bias"] = off(y + whole["down.bias"], expected)
        row["no residual"] = off(y + x, expected)
        sums = torch.stack([y.detach(), y.detach() ** 2])
        dist.all_reduce(sums)
        row["ranks differ"] = (comm.size * sums[1] - sums[0] ** 2).abs().max().item() > 1e-9
        (y * direction).sum().backward()
        row["gradients"] = {}
        for key, theirs in wanted.items():
            leaf = mine if key == "x" else part[key]
            ours = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            total = ours.clone()
            dist.all_reduce(total)
            row["gradients"][key] = {
                "off": off(ours, theirs),
                "share": off(total, theirs),
                "ratio": (ours / theirs).median().item(),
            }
        rows.append(row)
    return rows


def _unusable(rows: tuple[dict, ...]) -> str | None:
    """Return a sentence about an output that is no tensor of the right shape, or None."""
    for rank, row in enumerate(rows):
        if row["kind"] != "Tensor":
            return f"on rank {rank} it returns {row['kind']}: return the output, a tensor like x."
        if row["shape"] != [5, 6]:
            return f"on rank {rank} the output has the shape {row['shape']}, and x has [5, 6]."


def _mistake(rows: tuple[dict, ...]) -> tuple[str | None, str]:
    """Return the name of the mistake and what shows it; (None, ...) if there is none."""
    row, ranks = rows[0], len(rows)
    if row["output"] > CLOSE:
        if row["extra bias"] < CLOSE:
            return (
                "bias on every rank",
                "the output is off by exactly the bias of down: each rank adds it before g, so it is "
                f"summed {ranks} times",
            )
        if row["ranks differ"]:
            return "partial sums", "the two ranks have different outputs: use what g returns"
        if row["no bias"] < CLOSE:
            return "no bias", "the output is that of the serial block without the bias of down"
        if row["no residual"] < CLOSE:
            return "no residual", "the output is that of the serial block without `x +`"
        return "another output", f"the output is off by {row['output']:.0%} of its largest value"
    gradients = row["gradients"]
    wrong = [name for name, gradient in gradients.items() if gradient["off"] > CLOSE]
    if not wrong:
        return None, "output and gradients are those of the serial block"
    if all(abs(gradients[name]["ratio"] - ranks) < 1e-6 for name in ("up.weight", "down.weight")):
        return (
            "all-reduce in g's backward pass",
            f"the output is right and the ranks agree, but the gradient of up is {ranks} times the "
            "serial one",
        )
    norm = [name for name in wrong if name.startswith("norm")]
    if norm and all(gradients[name]["share"] < CLOSE for name in norm):
        shares = f"each rank's part: summed over the ranks, that of {norm[0]} is the serial one"
        if "x" in wrong and not row["f"]:
            return (
                "no f",
                f"the output is right, but the gradients of x and of {norm[0]} are {shares}",
            )
        if "x" in wrong:
            return (
                "f before the residual",
                "the output is right, but in x's gradient that of `x +` is summed as well, although every "
                "rank has all of it: f belongs after the norm",
            )
        return (
            "f before the norm",
            f"the output and x's gradient are right, but that of {norm[0]} is {shares}: f belongs "
            "directly before the split layers, after the norm",
        )
    return "another gradient", f"the output is right, but not the gradient of {', '.join(wrong)}"
