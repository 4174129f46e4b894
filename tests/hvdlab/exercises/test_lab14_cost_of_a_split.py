"""The checks of lab 14's formulas: the right answer passes, and each typical mistake is named."""

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab14_cost_of_a_split as exercises

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)

# --- bubble ----------------------------------------------------------------------------------------


def times(events):
    busy = sum(end - start for *_, start, end in events)
    return busy, min(event[3] for event in events), max(event[4] for event in events)


def bubble(events, ranks):
    busy, first, last = times(events)
    return 1 - busy / (ranks * (last - first))


def bubble_of_own_spans(events, ranks):
    parts = [[event for event in events if event[0] == rank] for rank in range(ranks)]
    return sum(bubble(part, 1) for part in parts) / ranks


MISTAKES[exercises.check_bubble] = [
    (lambda e, r: 1 - bubble(e, r), "fraction of time in which a rank works"),
    (lambda e, r: bubble(e, 1), "divide by ranks x span"),
    (lambda e, r: 1 - times(e)[0] / (r * times(e)[2]), "begins at 3 s, not at 0: the span"),
    (lambda e, r: 1 - times(e)[0] / times(e)[2], "not at 0, and there are two ranks"),
    (lambda e, r: r * 10 - times(e)[0], "in seconds"),
    (bubble_of_own_spans, "own span leaves out"),
    (lambda e, r: 0.25, "each rank works 6 of these 10"),
    (lambda e, r: 1 / 3, "That is the result of the formula"),
    (lambda e, r: None, "returned None"),
    (lambda e, r: e, "must return one number"),
    (lambda e, r: e[0][7], "raises IndexError"),
]  # fmt: skip


# --- groups of a mesh ------------------------------------------------------------------------------


def neighbours(rank, shape, axis, order="C"):
    mesh = np.arange(np.prod(shape)).reshape(shape, order=order)
    position = list(np.argwhere(mesh == rank)[0])
    position[axis] = slice(None)
    return mesh[tuple(position)].tolist()


def equal_on_the_axis(rank, shape, axis):
    mesh = np.arange(np.prod(shape)).reshape(shape)
    return mesh.take(np.argwhere(mesh == rank)[0][axis], axis).ravel().tolist()


MISTAKES[exercises.check_neighbours] = [
    (lambda *a: neighbours(*a, order="F"), "The last coordinate changes fastest"),
    (lambda r, *a: [n for n in neighbours(r, *a) if n != r], "The rank itself belongs"),
    (lambda *a: neighbours(*a)[::-1], "not in ascending order"),
    (equal_on_the_axis, "These ranks are equal on this axis"),
    (lambda *a: len(neighbours(*a)), "must return a list of ranks. Received: 2"),
    (lambda *a: None, "must return a list of ranks. Received: None"),
]  # fmt: skip


# --- traffic ---------------------------------------------------------------------------------------


def sent(
    split, weights, activation, blocks, gather=3, reduces=2, share=True, neighbours=None, ring=None
):
    d, t, p = split
    mine = activation / (d if share else 1)
    around = 2 * (t - 1) / t if ring is None else ring(t)
    return {
        "data": gather * (d - 1) / d * weights,
        "tensor": reduces * blocks / p * around * mine,
        "pipeline": (min(p - 1, 2) if neighbours is None else neighbours(p)) * activation / d,
    }


MISTAKES[exercises.check_sent_bytes] = [
    (lambda *a: sent(*a, gather=2),
     r'"data"\] is 1800, expected 2700.*add the bytes of the all-gather'),
    (lambda *a: sent(*a, gather=1), "An all-gather of the weights"),
    (lambda *a: sent(*a, reduces=1), "two all-reduces: one forward, one backward"),
    (lambda *a: sent(*a, share=False), "only its part of the batch"),
    (lambda *a: sent(*a, neighbours=lambda p: 2), "With two stages|no other rank to send to"),
    (lambda *a: sent(*a, neighbours=lambda p: int(p > 1)), "to one side and gradients to the other"),
    (lambda *a: sent(*a, neighbours=lambda p: min(p // 2, 2)),
     r'sent_bytes\(\(1, 1, 3\), .*"pipeline"\] is 960, expected 1920'),
    (lambda *a: sent(*a) | {"pipeline": sent(*a)["pipeline"] / a[0][1]},
     r'sent_bytes\(\(4, 2, 2\), .*"pipeline"\] is 120, expected 240.*along tensor has all'),
    (lambda *a: sent(*a) | {"pipeline": sent(*a)["pipeline"] * a[0][0] / a[0][1]},
     r'sent_bytes\(\(4, 2, 2\), .*"pipeline"\] is 480, expected 240.*along tensor has all'),
    # with two ranks along tensor these are right
    (lambda *a: sent(*a, ring=lambda t: t - 1), r'"tensor"\] is 46080, expected 23040. Each block'),
    (lambda *a: sent(*a, ring=lambda t: int(t > 1)), r'"tensor"\] is 15360, expected 23040'),
    (lambda *a: sent(*a, ring=lambda t: 2 / t * (t > 1)), r'"tensor"\] is 7680, expected 23040'),
    (lambda *a: sum(sent(*a).values()), "must return"),
    (lambda *a: None, "returned None"),
]  # fmt: skip


# --- time ------------------------------------------------------------------------------------------


def seconds(split, m, work, cores):
    d, t, p = split
    return max(work / (d * t * p) * (m + p - 1) / m, work / cores)


MISTAKES[exercises.check_compute_time] = [
    (lambda s, m, w, c: max(w / (s[0] * s[1] * s[2]), w / c), "The bubble is missing"),
    (lambda s, m, w, c: seconds(s, m, w, 100), "never less than work / cores"),
    (lambda s, m, w, c: w / (s[0] * s[1] * s[2]) * (1 + (s[2] - 1) / (m + s[2] - 1)),
     "divide by 1 - bubble"),
    (lambda s, m, w, c: max(w / (s[0] * s[2]) * (m + s[2] - 1) / m, w / c),
     r"compute_time\(\(1, 4, 1\), .* is 12, expected 3. The ranks along tensor share the work, too"),
    (lambda s, m, w, c: seconds(s, m, w, c) * (4 / 3 if s[2] > 1 < s[1] else 1),
     r"compute_time\(\(1, 2, 2\), .* is 5, expected 3.75"),
    (lambda s, m, w, c: w / c if s[0] * s[1] * s[2] > c else seconds(s, m, w, c),
     "The larger of both times counts"),
    (lambda s, m, w, c: w, "expected 6"),
    (lambda s, m, w, c: None, "returned None"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "answer", "says"),
    [
        (exercises.check_bubble, bubble, "Right: 0.4"),
        (exercises.check_neighbours, neighbours, "Right: six groups"),
        (exercises.check_sent_bytes, sent, "Right: seven splits"),
        (exercises.check_compute_time, seconds, "Right: ten splits"),
    ],
)
def test_the_right_answer_is_right(check, answer, says, capsys):
    check(answer)
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
