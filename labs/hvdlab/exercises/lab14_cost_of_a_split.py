"""Checks of lab 14: the bubble of a trace, groups of a mesh, and bytes and compute time of a split."""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, compare, exercise, number, right

# Two stages, two micro-batches, GPipe. A forward pass takes 1 s, a backward pass 2 s, and a send to the
# other stage half a second. The trace starts at 3 s. The schedule without sends would have a bubble of 1/3.
EVENTS = [
    (0, "forward", 0, 3, 4), (0, "forward", 1, 4, 5), (0, "backward", 0, 9, 11),
    (0, "backward", 1, 11, 13), (1, "forward", 0, 4.5, 5.5), (1, "forward", 1, 5.5, 6.5),
    (1, "backward", 0, 6.5, 8.5), (1, "backward", 1, 8.5, 10.5),
]  # fmt: skip
AXES = "data", "tensor", "pipeline"


@exercise
def check_bubble(bubble: Callable) -> None:
    """Demand 1 - busy / (ranks x span) of a trace that can be drawn on paper.

    Args:
        bubble: The learner's `bubble(events, ranks)`, a fraction.
    """
    case = "bubble(events, 2) of two micro-batches on two ranks"
    mistakes = {
        "That is the fraction of time in which a rank works; the bubble is the rest.": 0.6,
        "The work of both ranks is 12 s, in 10 s of two ranks: divide by ranks x span.": -0.2,
        "The trace begins at 3 s, not at 0: the span is the last end minus the first start.": 1
        - 12 / 26,
        "The trace begins at 3 s, not at 0, and there are two ranks.": 1 - 12 / 13,
        "That is in seconds: divide by the time of both ranks.": 8,
        "A rank's own span leaves out the time that it waits before its first and after its last event.": 0.2,
        "That is the result of the formula; this trace also has the time of sends: measure it.": 1
        / 3,
    }
    compare(
        case, number(call(bubble, list(EVENTS), 2), case), 0.4, mistakes,
        "The events begin at 3 s and end at 13 s, and each rank works 6 of these 10 seconds.",
        rtol=1e-5,
    )  # fmt: skip
    right("0.4 for two micro-batches on two ranks; (p-1)/(m+p-1) = 1/3 leaves out the sends.")


@exercise
def check_neighbours(neighbours: Callable) -> None:
    """Demand the ranks along an axis of a mesh, whose last coordinate changes fastest.

    Args:
        neighbours: The learner's `neighbours(rank, shape, axis)`, a list of ranks.
    """
    for rank, shape, axis, expected in (
        (6, (2, 2, 2), 2, [6, 7]),
        (6, (2, 2, 2), 0, [2, 6]),
        (6, (2, 2, 2), 1, [4, 6]),
        (5, (2, 3, 4), 2, [4, 5, 6, 7]),
        (5, (2, 3, 4), 1, [1, 5, 9]),
        (5, (2, 3, 4), 0, [5, 17]),
    ):
        case = f"neighbours({rank}, {shape}, axis={axis})"
        answer = call(neighbours, rank, shape, axis)
        try:
            found = [int(each) for each in answer]
        except (TypeError, ValueError):
            raise NotYet(f"{case} must return a list of ranks. Received: {answer!r}") from None
        if found == expected:
            continue
        grid = np.arange(np.prod(shape)).reshape(shape)
        turned = np.arange(np.prod(shape)).reshape(shape, order="F")
        mistakes = {
            "The rank itself belongs to its group.": [each for each in expected if each != rank],
            "The ranks are right, but not in ascending order.": found if sorted(found) == expected else None,
            "The last coordinate changes fastest, and not the first.": _along(turned, rank, axis),
            "These ranks are equal on this axis. A group differs on this axis and is equal on the others.":
                sorted(grid.take(np.argwhere(grid == rank)[0][axis], axis).ravel()),
        }  # fmt: skip
        likely = next((says for says, wrong in mistakes.items() if found == wrong), "")
        raise NotYet(f"{case} must be {expected}. Received: {found}. {likely}".strip())
    right(
        "six groups of two meshes. The last axis has consecutive ranks, so it stays inside a server."
    )


def _along(mesh: np.ndarray, rank: int, axis: int) -> list[int]:
    """Return the ranks of a mesh that differ from `rank` on one axis only."""
    position = [
        slice(None) if each == axis else at for each, at in enumerate(np.argwhere(mesh == rank)[0])
    ]
    return sorted(mesh[tuple(position)].tolist())


@exercise
def check_sent_bytes(sent_bytes: Callable) -> None:
    """Demand the bytes that a rank sends per step along each axis of a split.

    Args:
        sent_bytes: The learner's `sent_bytes(split, weights, activation, blocks)`.
    """
    for split, expected in (
        ((4, 1, 1), (2700, 0, 0)),
        ((1, 2, 1), (0, 15360, 0)),
        ((1, 4, 1), (0, 23040, 0)),  # 2(t-1)/t, which is 1 with two ranks
        ((1, 1, 2), (0, 0, 960)),
        ((1, 1, 3), (0, 0, 1920)),
        ((1, 1, 4), (0, 0, 1920)),
        ((4, 2, 2), (2700, 1920, 240)),
        ((1, 1, 1), (0, 0, 0)),
    ):
        case = f"sent_bytes({split}, weights=1200, activation=960, blocks=8)"
        answer = call(sent_bytes, split, 1200, 960, 8)
        if answer is None:
            raise NotYet(f"{case} returned None: is `return` missing?")
        try:
            sent = [float(answer[axis]) for axis in AXES]
        except (TypeError, KeyError, IndexError, ValueError):
            raise NotYet(
                f'{case} must return {{"data": ..., "tensor": ..., "pipeline": ...}}. Received: {answer!r}'
            ) from None
        for axis, nbytes, wanted in zip(AXES, sent, expected, strict=True):
            mistakes, otherwise = _traffic_mistakes(axis, split, wanted)
            compare(f'{case}["{axis}"]', nbytes, wanted, mistakes, otherwise, rtol=1e-5)
    right("seven splits by hand, and nothing for one rank.")


def _traffic_mistakes(
    axis: str, split: tuple[int, int, int], wanted: float
) -> tuple[dict[str, object], str]:
    """Return the known mistakes of one axis, and a sentence for all others."""
    data, tensor, stages = split
    if not wanted:
        return {}, "An axis of size 1 has no other rank to send to."
    if axis == "data":
        return (
            {
                "Gloo's reduce-scatter alone sends that much; add the bytes of the all-gather.": wanted
                * 2
                / 3
            },
            "An all-gather of the weights sends (d-1)/d, gloo's reduce-scatter of the gradients 2(d-1)/d.",
        )
    if axis == "tensor":
        mistakes = {"Each block has two all-reduces: one forward, one backward.": wanted / 2}
        if data * stages > 1:
            times = [wanted * factor for factor in (2, 4, 8)]
            mistakes["A rank has only its part of the batch (1/d) and of the blocks (1/p)."] = times
        return (
            mistakes,
            "Each block has two all-reduces, each of 2(t-1)/t times this rank's activations.",
        )
    mistakes = {
        "With two stages each rank has one neighbour: it sends activations or gradients, not both.":
            2 * wanted,
        "A stage in the middle sends activations to one side and gradients to the other.": wanted / 2,
    }  # fmt: skip
    return mistakes if data == tensor == 1 else {}, (
        "A rank sends its activations to each of at most two neighbours: those of 1/d of the batch, of which "
        "each rank along tensor has all."
    )


@exercise
def check_compute_time(compute_time: Callable) -> None:
    """Demand work / ranks with its bubble, and never less than work / cores.

    Args:
        compute_time: The learner's `compute_time(split, micro_batches, work, cores)`, in seconds.
    """
    for split, micro_batches, cores, expected in (
        ((1, 1, 1), 4, 2, 12),
        ((2, 1, 1), 4, 2, 6),
        ((1, 1, 2), 4, 2, 7.5),
        ((1, 1, 4), 1, 4, 12),
        ((2, 1, 2), 4, 4, 3.75),
        ((1, 4, 1), 4, 4, 3),
        ((1, 2, 2), 4, 4, 3.75),
        ((2, 1, 2), 4, 2, 6),
        ((1, 1, 4), 4, 2, 6),
        ((1, 1, 4), 1, 2, 12),  # more ranks than cores, and a bubble that is worse
    ):
        case = f"compute_time({split}, micro_batches={micro_batches}, work=12, cores={cores})"
        seconds = number(call(compute_time, split, micro_batches, 12, cores), case)
        ranks, (_, tensor, stages) = int(np.prod(split)), split
        bubble = (stages - 1) / (micro_batches + stages - 1)
        mistakes = {
            "The bubble is missing: a rank works m of m + p - 1 turns.": 12 / ranks,
            "The bubble is a fraction of the whole time, not of the work: divide by 1 - bubble.":
                12 / ranks * (1 + bubble),
            f"{ranks} ranks cannot use more than {cores} cores: never less than work / cores.":
                12 / ranks / (1 - bubble),
            "The ranks along tensor share the work, too: divide it by d x t x p.":
                12 / ranks * tensor / (1 - bubble),
            "The larger of both times counts, also with more ranks than cores.": 12 / cores,
        }  # fmt: skip
        compare(case, seconds, expected, mistakes, rtol=1e-5)
    right("ten splits by hand, with a core for each rank and with fewer cores.")
