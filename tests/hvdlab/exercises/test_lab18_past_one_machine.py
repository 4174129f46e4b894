"""The checks of lab 18: the right answer passes, and each typical mistake is called by its name."""

import math

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab18_past_one_machine as exercises


def line(nbytes, seconds, weights=True):
    slope, start = np.polyfit(nbytes, seconds, 1, w=1 / seconds if weights else None)
    return start, slope


def fit_link(nbytes, seconds):
    start, slope = line(nbytes, seconds)
    return start, 1 / slope


def ring_time(nbytes, ranks, alpha, beta, gamma):
    chunk = nbytes / ranks
    return 2 * (ranks - 1) * (alpha + chunk / beta) + (ranks - 1) * chunk * gamma


def tree_time(nbytes, ranks, alpha, beta, gamma, levels=lambda n: math.ceil(math.log2(n))):
    return 2 * levels(ranks) * alpha + (ranks - 1) / ranks * nbytes * (2 / beta + gamma)


def step_efficiency(compute, communication, overlap):
    return compute / (compute + max(0, communication - overlap * compute))


def limit(step, without, least=0.05):
    losses = {name: step - seconds for name, seconds in without.items()}
    worst = max(losses, key=losses.get)
    return worst if losses[worst] >= least * step else "compute"


def hours_to_goal(images_per_second, global_batch, s_min, b_crit):
    return s_min * (1 + b_crit / global_batch) * global_batch / images_per_second / 3600


def weighed(nbytes, seconds, weights):
    slope, start = np.polyfit(nbytes, seconds, 1, w=weights)
    return start, 1 / slope


RIGHT = {
    exercises.check_fit_link: fit_link,
    exercises.check_ring_time: ring_time,
    exercises.check_tree_time: tree_time,
    exercises.check_step_efficiency: step_efficiency,
    exercises.check_limit: limit,
    exercises.check_hours_to_goal: hours_to_goal,
}


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
def test_the_right_answer_is_right(check, capsys):
    check(RIGHT[check])
    assert capsys.readouterr().out.startswith("Right: ")


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (exercises.check_fit_link, line, r"beta is bytes a second: 1 / slope"),
        (exercises.check_fit_link, lambda n, s: line(n, s)[::-1], "as np.polyfit returns them"),
        (exercises.check_fit_link, lambda n, s: fit_link(n, s)[::-1], "return alpha first"),
        (exercises.check_fit_link, lambda n, s: (1e-6, 1e9), "lie exactly on"),
        (exercises.check_fit_link, lambda n, s: (line(n, s, False)[0], 1 / line(n, s, False)[1]),
         r"w = 1 / seconds"),
        (exercises.check_fit_link, lambda n, s: 3.0, r"two numbers \(alpha, beta\)"),
        (exercises.check_fit_link, lambda n, s: None, "is `return` missing"),
        (exercises.check_fit_link, lambda n, s: weighed(n, s, s**-0.5), "not their root or square"),
        (exercises.check_fit_link, lambda n, s: weighed(n, s, s**-2.0), "not their root or square"),
        (exercises.check_fit_link, lambda n, s: weighed(n[[0, -1]], s[[0, -1]], None),
         "leave out no point"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * (b / r) ** 2 / 3600, "another is not"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * (1 + c // b) * b // r / 3600 // 1,
         "another"),
        (exercises.check_hours_to_goal, lambda *a: 3600 * hours_to_goal(*a), "in seconds"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * b / r / 3600, "endless batch"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * (1 + b / c) * b / r / 3600, "upside down"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * c / b * b / r / 3600, r"s_min counts too"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * (1 + c / b) / r / 3600, "images, not steps"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: 7, "21.6 million"),
        (exercises.check_ring_time, lambda s, n, a, b, g: 2 * (n - 1) * (a + s / n / b),
         "additions are missing"),
        (exercises.check_ring_time, lambda s, n, a, b, g: 2 * (n - 1) * (a + s / n / b + s / n * g),
         "one phase"),
        (exercises.check_ring_time, lambda s, n, a, b, g: 2 * (n - 1) * (a + s / n / b) + s * g,
         "adds N-1 chunks"),
        (exercises.check_ring_time, lambda s, n, a, b, g: (n - 1) * (a + s / n / b + s / n * g),
         "one of the two"),
        (exercises.check_ring_time, lambda s, n, a, b, g: 2 * n * (a + s / n / b) + s * g, "2N messages"),
        (exercises.check_ring_time, lambda s, n, a, b, g: a + (n - 1) / n * s * (2 / b + g),
         "alpha counts each"),
        (exercises.check_ring_time, lambda s, n, a, b, g: (n - 1) * (2 * (a + s / b) + s / n * g),
         "one chunk"),
        (exercises.check_ring_time, lambda s, n, a, b, g: a + s / b, "a plain message"),
        (exercises.check_ring_time, lambda s, n, a, b, g: (n - 1) * (2 * (a + s / n * b) + s / n * g),
         "divide by it"),
        (exercises.check_ring_time, lambda s, n, a, b, g: 21, "4 ranks are right, 3 are not"),
        (exercises.check_ring_time, lambda s, n, a, b, g: 22, "By hand it is 6 messages"),
        (exercises.check_ring_time, lambda s, n, a, b, g: "21 s", "one number of seconds"),
        (exercises.check_ring_time, lambda s, n, a, b, g: ring_time(s, n, a, b, g) + 9 * (n == 1),
         "adds nothing"),
        (exercises.check_tree_time, lambda s, n, a, b, g: tree_time(s, n, a / 2, b, g), "the way up only"),
        (exercises.check_tree_time, ring_time, "the latency of a ring"),
        (exercises.check_tree_time, lambda *x: tree_time(*x, levels=math.log), "natural logarithm"),
        (exercises.check_tree_time, lambda s, n, a, b, g: tree_time(s, n, a, b, 0), "additions are missing"),
        (exercises.check_tree_time, lambda s, n, a, b, g: tree_time(s, n, a, b, 0) + s * g, "N-1 sums of S"),
        (exercises.check_tree_time, lambda s, n, a, b, g: 4 * a + s * (2 / b + g), "up and as many down"),
        (exercises.check_tree_time, lambda s, n, a, b, g: tree_time(s, n, a, 2 * b, 0),
         "up the tree and down"),
        (exercises.check_tree_time, lambda s, n, a, b, g: 4 * (a + s / b), "once per level"),
        (exercises.check_tree_time, lambda *x: tree_time(*x, levels=math.log2), "round log2"),
        (exercises.check_tree_time, lambda *x: tree_time(*x, levels=lambda n: int(math.log2(n))),
         "round log2"),
        (exercises.check_tree_time, lambda s, n, a, b, g: 20, "4 ranks are right, 5 are not"),
        (exercises.check_tree_time, lambda s, n, a, b, g: 7, "4 latencies of 0.5 s"),
        (exercises.check_step_efficiency, lambda c, m, o: c / (c + m), "Nothing is hidden"),
        (exercises.check_step_efficiency, lambda c, m, o: c / (c + m * (1 - o)), "not of the communication"),
        (exercises.check_step_efficiency, lambda c, m, o: c / (c + m - o * c),
         "More is hidden than there is"),
        (exercises.check_step_efficiency, lambda c, m, o: c + max(0, m - o * c), "the time of the step"),
        (exercises.check_step_efficiency, lambda c, m, o: 1 / step_efficiency(c, m, o), "upside down"),
        (exercises.check_step_efficiency, lambda c, m, o: max(0, m - o * c), "visible communication"),
        (exercises.check_step_efficiency, lambda c, m, o: 0.2, "0.1 s remain"),
        (exercises.check_limit, lambda s, w: max(w, key=w.get), "A small value in `without`"),
        (exercises.check_limit, lambda s, w: limit(s, w, 0), "less than 5 %|No cost takes 5 %"),
        (exercises.check_limit, lambda s, w: "compute" if s - min(w.values()) < 0.05 else min(w, key=w.get),
         "0.07 s are less than 5 % of a step of 2 s"),
        (exercises.check_limit, lambda s, w: s - min(w.values()), "must return a name"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
