"""Exercises of lab 14: the bubble of a trace, groups of a mesh, and bytes and compute time of a split."""

import math

from hvdlab.exercises import NotYet, call, number, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise

# Two stages, two micro-batches, GPipe. A forward pass takes 1 s, a backward pass 2 s, and a send to the
# other stage half a second. The trace starts at 3 s. The schedule without sends would have a bubble of 1/3.
EVENTS = [
    (0, "forward", 0, 3, 4), (0, "forward", 1, 4, 5), (0, "backward", 0, 9, 11),
    (0, "backward", 1, 11, 13), (1, "forward", 0, 4.5, 5.5), (1, "forward", 1, 5.5, 6.5),
    (1, "backward", 0, 6.5, 8.5), (1, "backward", 1, 8.5, 10.5),
]  # fmt: skip


def bubble(events, ranks):
    busy = sum(end - start for _, _, _, start, end in events)
    span = max(event[4] for event in events) - min(event[3] for event in events)
    return 1 - busy / (ranks * span)


OWN_WORK = "sum(e[4] - e[3] for e in events if e[0] == r)"
OWN_SPAN = "max(e[4] for e in events if e[0] == r) - min(e[3] for e in events if e[0] == r)"

# fmt: off
check_bubble = FunctionExercise(
    bubble,
    [
        Case((EVENTS, 2), "The events begin at 3 s and end at 13 s, and each rank works 6 of these 10 s.",
             "bubble(events, ranks=2) of two micro-batches on two ranks", expected=0.4),
        Case(([(0, "forward", 0, 1, 2), (0, "backward", 0, 3, 5)], 1),
             "The events begin at 1 s and end at 5 s, and the rank works 3 of these 4 s.",
             "bubble(events, ranks=1) of one micro-batch on one rank", expected=0.25),
    ],
    {
        "That is the fraction of time in which a rank works; the bubble is the rest.": ("1 - busy", "busy"),
        "The work of both ranks is 12 s, in 10 s of two ranks: divide by ranks x span.":
            ("ranks * span", "span"),
        "The trace begins at 3 s, not at 0: the span is the last end minus the first start.":
            (" - min(event[3] for event in events)", ""),
        "The trace begins at 3 s, not at 0, and there are two ranks.":
            (" - min(event[3] for event in events)", "", "ranks * span", "span"),
        "That is in seconds: divide by the time of both ranks.":
            ("1 - busy / (ranks * span)", "ranks * span - busy"),
        "A rank's own span leaves out the time that it waits before its first and after its last event.":
            [("(ranks * span)", f"sum({OWN_SPAN} for r in range(ranks))"),
             ("busy / (ranks * span)", f"sum({OWN_WORK} / ({OWN_SPAN}) for r in range(ranks)) / ranks")],
        "That is the result of the formula; this trace also has the time of sends: measure it.":
            ("1 - busy / (ranks * span)", "(ranks - 1) / (len({each[2] for each in events}) + ranks - 1)"),
    },
    passed="0.4 for two micro-batches on two ranks; (p-1)/(m+p-1) = 1/3 leaves out the sends.",
)
# fmt: on


def neighbours(rank, shape, axis):
    def other_coordinates(number):
        position = []
        for size in reversed(shape):
            position.insert(0, number % size)
            number //= size
        return position[:axis] + position[axis + 1 :]

    mine = other_coordinates(rank)
    return [number for number in range(math.prod(shape)) if other_coordinates(number) == mine]


# fmt: off
check_neighbours = FunctionExercise(
    neighbours,
    [Case((rank, shape, axis), f"The position of rank {rank} is {position}, and only the coordinate of the "
          "axis changes.", expected=expected)
     for rank, shape, axis, position, expected in [
        (6, (2, 2, 2), 2, "(1, 1, 0)", [6, 7]), (6, (2, 2, 2), 0, "(1, 1, 0)", [2, 6]),
        (6, (2, 2, 2), 1, "(1, 1, 0)", [4, 6]), (5, (2, 3, 4), 2, "(0, 1, 1)", [4, 5, 6, 7]),
        (5, (2, 3, 4), 1, "(0, 1, 1)", [1, 5, 9]), (5, (2, 3, 4), 0, "(0, 1, 1)", [5, 17])]],
    {
        "The rank itself belongs to its group.": ("== mine]", "== mine and number != rank]"),
        "The ranks are right, but not in ascending order.":
            ("in range(math.prod(shape))", "in reversed(range(math.prod(shape)))"),
        "The last coordinate changes fastest, and not the first.":
            ("in reversed(shape)", "in shape", "insert(0, number % size)", "append(number % size)"),
        "These ranks are equal on this axis. A group differs on this axis and is equal on the others.":
            ("position[:axis] + position[axis + 1 :]", "position[axis]"),
    },
    passed="six groups of two meshes. The last axis has consecutive ranks, so it stays inside a server.",
    shape=None, meaning="(a list of ranks)",
)
# fmt: on


def sent_bytes(split, weights, activation, blocks):
    d, t, p = split
    mine = activation / d
    return {
        "data": 3 * (d - 1) / d * weights,
        "tensor": 2 * blocks / p * 2 * (t - 1) / t * mine,
        "pipeline": min(p - 1, 2) * mine,
    }


AXES = "data", "tensor", "pipeline"
NAMES = [f'"{axis}" of' for axis in AXES]


def bytes_of_axes(sent_bytes, *arguments):
    """Return the bytes along each axis."""
    answer = call(sent_bytes, *arguments, name="sent_bytes")
    try:
        sent = [answer[axis] for axis in AXES]
    except (TypeError, KeyError, IndexError, ValueError):
        raise NotYet(
            'sent_bytes must return {"data": ..., "tensor": ..., "pipeline": ...}. Received: '
            f"{received(answer)}"
        ) from None
    return {
        name: number(value, f"{name} sent_bytes", "of bytes")
        for name, value in zip(NAMES, sent, strict=True)
    }


NO_OTHER = "An axis of size 1 has no other rank to send to."
DATA = (
    "An all-gather of the weights sends (d-1)/d, gloo's reduce-scatter of the gradients 2(d-1)/d."
)
TENSOR = "Each block has two all-reduces, each of 2(t-1)/t times this rank's activations."
PIPELINE = (
    "A rank sends its activations to each of at most two neighbours: those of 1/d of the batch, of which "
    "each rank along tensor has all."
)
AROUND, BORDERS, SENT = "* 2 * (t - 1) / t", "min(p - 1, 2)", "min(p - 1, 2) * mine"

# fmt: off
check_sent_bytes = FunctionExercise(
    sent_bytes,
    [Case((split, 1200, 960, 8), reason, expected=dict(zip(NAMES, sent, strict=True)))
     for split, reason, sent in [
        ((4, 1, 1), f"{DATA} {NO_OTHER}", (2700, 0, 0)), ((1, 2, 1), f"{TENSOR} {NO_OTHER}", (0, 15360, 0)),
        ((1, 4, 1), f"{TENSOR} {NO_OTHER}", (0, 23040, 0)),  # 2(t-1)/t, which is 1 with two ranks
        ((1, 1, 2), f"{PIPELINE} {NO_OTHER}", (0, 0, 960)),
        ((1, 1, 3), f"{PIPELINE} {NO_OTHER}", (0, 0, 1920)),
        ((1, 1, 4), f"{PIPELINE} {NO_OTHER}", (0, 0, 1920)),
        ((4, 2, 2), f"{DATA} {TENSOR} {PIPELINE}", (2700, 1920, 240)),
        ((1, 1, 1), NO_OTHER, (0, 0, 0))]],
    {
        "Gloo's reduce-scatter alone sends that much; add the bytes of the all-gather.": ("3 * (d", "2 * (d"),
        "The all-gather alone sends that much; add the bytes of the reduce-scatter, 2(d-1)/d.":
            ("3 * (d", "(d"),
        "Each block has two all-reduces: one forward, one backward.": ("2 * blocks", "blocks"),
        "A rank has only its part of the batch (1/d) and of the blocks (1/p).":
            [("/ t * mine", "/ t * activation"), ("blocks / p", "blocks"),
             ("/ t * mine", "/ t * activation", "blocks / p", "blocks")],
        "An all-reduce between t ranks sends 2(t-1)/t times the activations, which is 1 only if t = 2.":
            [(AROUND, "* (t - 1)"), (AROUND, "* (t > 1)"), (AROUND, "* (t > 1) * 2 / t")],
        "With two stages each rank has one neighbour: it sends activations or gradients, not both.":
            [(BORDERS, "2 * (p > 1)"), (BORDERS, "2")],
        "A stage in the middle sends activations to one side and gradients to the other.":
            (BORDERS, "(p > 1)"),
        "A rank has at most two neighbours, also with four stages.": (BORDERS, "(p - 1)"),
        "A rank sends the activations of its part of the batch only: 1/d.": (SENT, f"{BORDERS} * activation"),
        "Each rank along tensor has all activations of its part of the batch: do not divide by t.":
            [(SENT, f"{SENT} / t"), (SENT, f"{BORDERS} * activation / t")],
    },
    passed="seven splits by hand, and nothing for one rank.", observe=bytes_of_axes, rtol=1e-5,
)
# fmt: on


def compute_time(split, micro_batches, work, cores):
    d, t, p = split
    own = work / (d * t * p) * (micro_batches + p - 1) / micro_batches
    return max(own, work / cores)


TURNS, LARGER = "* (micro_batches + p - 1) / micro_batches", "max(own, work / cores)"

# fmt: off
check_compute_time = FunctionExercise(
    compute_time,
    [Case((split, micro_batches, 12, cores), reason, expected=expected)
     for split, micro_batches, cores, expected, reason in [
        ((1, 1, 1), 4, 2, 12, "One rank does all the work."),
        ((2, 1, 1), 4, 2, 6, "Each of two ranks does half of the work, and there is no bubble."),
        ((1, 1, 2), 4, 2, 7.5, "Each rank works 6 s, in 4 turns of 5."),
        ((1, 1, 4), 1, 4, 12, "Each rank works 3 s, in one turn of 4."),
        ((2, 1, 2), 4, 4, 3.75, "Each rank works 3 s, in 4 turns of 5."),
        ((1, 4, 1), 4, 4, 3, "Each of four ranks does a quarter of the work, and there is no bubble."),
        ((1, 2, 2), 4, 4, 3.75, "Each rank works 3 s, in 4 turns of 5."),
        ((2, 1, 2), 4, 2, 6, "Each rank needs 3.75 s, but two cores need 6 s for the work."),
        ((1, 1, 4), 4, 2, 6, "Each rank needs 5.25 s, but two cores need 6 s for the work."),
        ((1, 1, 4), 1, 2, 12, "Two cores need 6 s for the work, but each rank has a bubble: it works 3 s, in "
         "one turn of 4.")]],
    {
        "The bubble is missing: a rank works m of m + p - 1 turns.": (TURNS, ""),
        "The bubble is a fraction of the whole time, not of the work: divide by 1 - bubble.":
            (TURNS, "* (1 + (p - 1) / (micro_batches + p - 1))"),
        "More ranks than cores do not compute faster: the time is never less than work / cores.":
            (LARGER, "own"),
        "The ranks along tensor share the work, too: divide it by d x t x p.": ("d * t * p", "d * p"),
        "The larger of both times counts, also with more ranks than cores.":
            (LARGER, "work / cores if d * t * p > cores else own"),
        "The larger of both times counts, not the smaller.": (LARGER, "min(own, work / cores)"),
    },
    passed="ten splits by hand, with a core for each rank and with fewer cores.", meaning="of seconds",
    rtol=1e-5,
)
# fmt: on
