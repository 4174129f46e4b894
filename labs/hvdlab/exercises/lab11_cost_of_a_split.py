"""Checks of lab 11: the bubble of a trace, the bytes that a split sends, the time that it computes."""

import numpy as np

from hvdlab import exercises
from hvdlab.exercises import NotYet, right

# Two stages, two micro-batches, GPipe; a forward pass takes 1 s, a backward pass 2 s, and what a stage
# sends to the other half a second. Begun at 3 s. In the schedule alone the bubble would be 1/3.
EVENTS = [
    (0, "forward", 0, 3, 4), (0, "forward", 1, 4, 5), (0, "backward", 0, 9, 11),
    (0, "backward", 1, 11, 13), (1, "forward", 0, 4.5, 5.5), (1, "forward", 1, 5.5, 6.5),
    (1, "backward", 0, 6.5, 8.5), (1, "backward", 1, 8.5, 10.5),
]  # fmt: skip


def check_bubble(bubble) -> None:
    """Demand 1 - busy / (ranks x span), of a trace that can be drawn on paper."""
    case = "bubble(events, 2) of two micro-batches on two ranks"
    share = number(exercises.call(bubble, list(EVENTS), 2), case)
    for wrong, says in (
        (0.6, "that is the share in which a rank works; the bubble is the rest."),
        (-0.2, "both ranks' work is 12 s, in 10 s of two ranks: divide by ranks x span."),
        (1 - 12 / 26, "the trace begins at 3 s, not at 0: span is the last end less the first start."),
        (1 - 12 / 13, "the trace begins at 3 s, not at 0, and there are two ranks."),
        (8, "that is in seconds: divide by the time of both ranks."),
        (0.2, "a rank's own span leaves out what it waits before its first and after its last event."),
        (1 / 3, "that is the formula's, and this trace also has the time of sends: measure."),
    ):  # fmt: skip
        if np.isclose(share, wrong):
            raise NotYet(f"{case} is {share:.3g}: {says}")
    if not np.isclose(share, 0.4):
        raise NotYet(
            f"{case} is {share:.3g}. They begin at 3 s and end at 13 s, and each rank works 6 of these 10 "
            "seconds: 0.4 is the bubble."
        )
    right("0.4 for two micro-batches on two ranks; (p-1)/(m+p-1) = 1/3 leaves out what sends take.")


def check_sent_bytes(sent_bytes) -> None:
    """Demand the bytes that a rank sends in a step along each axis of a split."""
    weights, activation, blocks = 1200, 960, 8
    for split, wanted in (
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
        got = exercises.call(sent_bytes, split, weights, activation, blocks)
        if got is None:
            raise NotYet(f"{case} returned None: is `return` missing?")
        try:
            got = [float(got[axis]) for axis in ("data", "tensor", "pipeline")]
        except (TypeError, KeyError, IndexError, ValueError):
            raise NotYet(
                f'{case} shall return {{"data": ..., "tensor": ..., "pipeline": ...}}. Received: {got!r}'
            ) from None
        for axis, mine, right_one in zip(("data", "tensor", "pipeline"), got, wanted, strict=True):
            if not np.isclose(mine, right_one):
                raise NotYet(
                    f'{case}["{axis}"] is {mine:g}, by hand {right_one:g}. '
                    + _traffic(axis, split, mine, right_one)
                )
    right("seven splits by hand, and nothing for one rank.")


def _traffic(axis, split, mine, wanted):
    if not wanted:
        return "There is nobody to talk to along an axis of 1."
    if axis == "data":
        if np.isclose(mine, wanted * 2 / 3):
            return "Gloo's reduce-scatter alone sends that much; the all-gather comes on top."
        return "An all-gather of the weights, (d-1)/d, and gloo's reduce-scatter of the gradients, 2(d-1)/d."
    if axis == "tensor":
        if np.isclose(mine, wanted / 2):
            return "Each block has two all-reduces: one forward, one backward."
        data, _, stages = split
        if data * stages > 1 and any(np.isclose(mine, wanted * n) for n in (2, 4, 8)):
            return "A rank has only its part of the batch (1/d) and of the blocks (1/p)."
        return "Two all-reduces a block, each 2(t-1)/t times this rank's activations."
    alone = split[:2] == (1, 1)
    if alone and np.isclose(mine, 2 * wanted):
        return "With two stages each rank has one neighbour: it sends activations or gradients, not both."
    if alone and np.isclose(mine, wanted / 2):
        return "A stage in the middle sends activations to one side and gradients to the other."
    return (
        "This rank's activations, to each of at most two neighbours: those of 1/d of the batch, "
        "of which each rank along tensor has all."
    )


def check_compute_time(compute_time) -> None:
    """Demand work / ranks with its bubble, and never less than work / cores."""
    for split, micro_batches, cores, wanted in (
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
        seconds = number(exercises.call(compute_time, split, micro_batches, 12, cores), case)
        if np.isclose(seconds, wanted):
            continue
        ranks, (_, tensor, stages) = int(np.prod(split)), split
        bubble = (stages - 1) / (micro_batches + stages - 1)
        for wrong, says in (
            (12 / ranks, "the bubble is missing: a rank works m of m + p - 1 turns."),
            (
                12 / ranks * (1 + bubble),
                "the bubble is a share of the whole time, not of the work: divide by 1 - bubble.",
            ),
            (
                12 / ranks / (1 - bubble),
                f"{ranks} ranks cannot have more than {cores} cores: never less than work / cores.",
            ),
            (
                12 / ranks * tensor / (1 - bubble),
                "the ranks along tensor share the work, too: divide it by d x t x p.",
            ),
            (12 / cores, "of both times the larger one counts, also with more ranks than cores."),
        ):
            if np.isclose(seconds, wrong):
                raise NotYet(f"{case} is {seconds:g}: {says}")
        raise NotYet(f"{case} is {seconds:g}; by hand {wanted:g}.")
    right("ten splits by hand, with a core for each rank and with fewer.")


def number(got, case: str) -> float:
    """What a learner's function returned, if it is one number."""
    if got is None:
        raise NotYet(f"{case} returned None: is `return` missing?")
    try:
        return float(got)
    except (TypeError, ValueError):
        raise NotYet(f"{case} shall return one number. Received: {got!r}") from None
