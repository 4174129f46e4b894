"""The checks of lab 18: the right answer passes, and each typical mistake is called by its name."""

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


def ring_time(nbytes, ranks, alpha, beta):
    return 2 * (ranks - 1) * (alpha + nbytes / ranks / beta)


def falls_below(efficiency, level, most):
    if efficiency(most) >= level:
        return None
    above, below = 0, most
    while below - above > 1:
        middle = (above + below) // 2
        above, below = (above, middle) if efficiency(middle) < level else (middle, below)
    return below


def hours_to_goal(images_per_second, global_batch, s_min, b_crit):
    return s_min * (1 + b_crit / global_batch) * global_batch / images_per_second / 3600


def scan(efficiency, level, most):
    return next((n for n in range(1, most + 1) if efficiency(n) < level), None)


def weighed(nbytes, seconds, weights):
    slope, start = np.polyfit(nbytes, seconds, 1, w=weights)
    return start, 1 / slope


def endless(efficiency, level, most):
    above, below = 1, most
    while above < below:
        middle = (above + below) // 2
        above, below = (above, middle) if efficiency(middle) < level else (middle, below)
    return below


def never_asks_at_most(efficiency, level, most):
    above, below = 0, most
    while below - above > 1:
        middle = (above + below) // 2
        above, below = (above, middle) if efficiency(middle) < level else (middle, below)
    return below if below < most else None


RIGHT = {
    exercises.check_fit_link: fit_link,
    exercises.check_ring_time: ring_time,
    exercises.check_falls_below: falls_below,
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
        (exercises.check_ring_time, lambda s, n, a, b: (n - 1) * (a + s / n / b), "one of the two"),
        (exercises.check_ring_time, lambda s, n, a, b: 2 * n * (a + s / n / b), "2N steps"),
        (exercises.check_ring_time, lambda s, n, a, b: a + 2 * (n - 1) * s / n / b,
         "alpha counts each time"),
        (exercises.check_ring_time, lambda s, n, a, b: 2 * (n - 1) * (a + s / b), "one chunk"),
        (exercises.check_ring_time, lambda s, n, a, b: a + s / b, "a plain message"),
        (exercises.check_ring_time, lambda s, n, a, b: 2 * (n - 1) * (a + s / n * b), "divide by it"),
        (exercises.check_ring_time, lambda s, n, a, b: 15, "4 ranks are right, 3 are not"),
        (exercises.check_ring_time, lambda s, n, a, b: 14, "By hand it is 6 steps"),
        (exercises.check_ring_time, lambda s, n, a, b: "15 s", "one number of seconds"),
        (exercises.check_fit_link, lambda n, s: weighed(n, s, s**-0.5), "not their root or square"),
        (exercises.check_fit_link, lambda n, s: weighed(n, s, s**-2.0), "not their root or square"),
        (exercises.check_fit_link, lambda n, s: weighed(n[[0, -1]], s[[0, -1]], None),
         "leave out no point"),
        (exercises.check_ring_time, lambda s, n, a, b: n * (n - 1) / 2 * (a + s / n / b), "3 are not"),
        (exercises.check_ring_time, lambda s, n, a, b: 2 * (n - 1) * (a + s / 4 / b), "3 are not"),
        (exercises.check_ring_time, lambda s, n, a, b: 2 * (n - 1) * (a + s // n / b), "3 are not"),
        (exercises.check_ring_time, lambda s, n, a, b: max(2 * (n - 1), 1) * (a + s / n / b),
         "nobody to talk to"),
        (exercises.check_falls_below, endless, "does not end"),
        (exercises.check_falls_below, never_asks_at_most, "10,000 ranks only"),
        (exercises.check_falls_below, lambda e, v, m: falls_below(e, v, 10_000),
         "knows 1 to 500 ranks, you asked for 10000"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * (b / r) ** 2 / 3600, "another is not"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * (1 + c // b) * b // r / 3600 // 1,
         "another"),
        (exercises.check_falls_below, scan, "Halve the interval"),
        (exercises.check_falls_below, lambda e, v, m: falls_below(e, v, m) - 1, "one further"),
        (exercises.check_falls_below, lambda e, v, m: 7, "1002 is the first"),
        (exercises.check_falls_below, lambda e, v, m: None, "at 1002 ranks it is below"),
        (exercises.check_falls_below, lambda e, v, m: falls_below(e, v, m) or m, "return None, not"),
        (exercises.check_falls_below, lambda e, v, m: 1002 if v == 0.5 else None, "first rank on"),
        (exercises.check_falls_below, lambda e, v, m: e(0), "knows 1 to 10000 ranks"),
        (exercises.check_hours_to_goal, lambda *a: 3600 * hours_to_goal(*a), "in seconds"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * b / r / 3600, "endless batch"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * (1 + b / c) * b / r / 3600, "upside down"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * c / b * b / r / 3600, r"s_min counts too"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: s * (1 + c / b) / r / 3600, "images, not steps"),
        (exercises.check_hours_to_goal, lambda r, b, s, c: 7, "21.6 million"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
