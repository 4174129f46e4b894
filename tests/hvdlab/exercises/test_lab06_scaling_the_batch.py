"""The checks of lab 6 accept right answers and name the mistake in wrong ones."""

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab06_scaling_the_batch as exercises
from hvdlab.noise_scale import estimate

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)


def fit(batches, steps):
    slope, intercept = np.polyfit(1 / np.asarray(batches), steps, 1, w=1 / np.asarray(steps))
    return intercept, slope / intercept


def through_origin(batches, steps):
    return 0.0, np.mean(steps * batches)


def log_fit(batches, steps):
    """Another right way: a search over b_crit, with s_min from the mean of the logarithms."""
    candidates = np.geomspace(1, 1e5, 200_001)[:, None]
    logs = np.log(steps) - np.log1p(candidates / batches)
    best = logs.std(1).argmin()
    return np.exp(logs[best].mean()), candidates[best, 0]


def box(weights, gradient, minimum, eps):
    half = eps * (np.abs(minimum) + 1)
    return np.clip(weights + half / 2 * np.sign(gradient), minimum - half, minimum + half)


@pytest.mark.parametrize(
    "check, answer",
    [
        (exercises.check_two_batch_estimate, estimate),
        (exercises.check_two_batch_estimate, lambda *a: list(estimate(*a))),
        (exercises.check_fit_steps, fit),
        (exercises.check_fit_steps, log_fit),
        (exercises.check_box_step, box),
    ],
)
def test_right_answers_pass(check, answer, capsys):
    check(answer)
    assert capsys.readouterr().out.startswith("Right: ")


def subtracts_in_place(small, big, m, n):
    g2, s = estimate(small, big, m, n)
    small -= big
    return g2, s


def weighed(batches, steps, weights):
    slope, intercept = np.polyfit(1 / batches, steps, 1, w=weights)
    return intercept, slope / intercept


def box_in_place(weights, gradient, minimum, eps):
    weights += eps * (np.abs(minimum) + 1) / 2 * np.sign(gradient)
    return np.clip(weights, *_edges(minimum, eps))


def box_by_loop(weights, gradient, minimum, eps):
    moved = []
    for w, g, m in zip(weights, gradient, minimum, strict=True):
        half = eps * (abs(m) + 1)
        moved.append(min(max(w + half / 2 * np.sign(g), m - half), m + half))
    return np.array(moved)


MISTAKES[exercises.check_two_batch_estimate] = [
    (lambda s, b, m, n: estimate(s, b, m, n)[::-1], "return G2 first"),
    (lambda s, b, m, n: ((m * b - n * s) / (m - n), (s - b) / (1 / n - 1 / m)), "swapped"),
    (lambda s, b, m, n: ((m * b - n * s) / (n - m), estimate(s, b, m, n)[1]), "swapped"),
    (lambda s, b, m, n: estimate(s**0.5, b**0.5, m, n), "without the square"),
    (lambda s, b, m, n: estimate(s**2, b**2, m, n), "square the norms again"),
    (lambda s, b, m, n: np.divide(*estimate(s, b, m, n)[::-1]), "ratio S / G2 of one step"),
    (lambda s, b, m, n: (estimate(s, b, m, n)[0], b - s), "128"),
    (lambda s, b, m, n: (estimate(s, b, m, n)[0], (b - s) / (1 / m - 1 / n)), "wrong sign"),
    (lambda s, b, m, n: (n * b - m * s, estimate(s, b, m, n)[1]), "lacks the division"),
    (lambda s, b, m, n: (estimate(s, b, m, n)[0], (s - b) / (n - m)), "by that of 1 / B"),
    (lambda *a: np.maximum(estimate(*a), 0), "Do not clip"),
    (lambda *a: (estimate(*a)[0], np.maximum(estimate(*a)[1], 0)), "S may be negative"),
    (subtracts_in_place, "subtracts_in_place changes what it is given"),
    (lambda *a: tuple(float(np.mean(v)) for v in estimate(*a)), r"shape \(3,\)"),
    (lambda *a: (estimate(*a)[0], np.mean(estimate(*a)[1])), r"shape \(3,\)"),
    (lambda *a: None, "`return` missing"),
    (lambda *a: "G2, S", "two numbers"),
    (lambda *a: (2.0, 3.0, 4.0), "two numbers"),
]  # fmt: skip


MISTAKES[exercises.check_fit_steps] = [
    (lambda b, s: fit(b, s)[::-1], "return s_min first"),
    (lambda b, s: (fit(b, s)[0], np.prod(fit(b, s))), "divide it by s_min"),
    (lambda b, s: np.polyfit(1 / b, s, 1), "slope first"),
    (lambda b, s: (fit(b, s)[0], 1 / fit(b, s)[1]), "upside down"),
    (through_origin, "through the origin"),
    (lambda b, s: (lambda k, c: (c, k / c))(*np.polyfit(b, s, 1)), "line over B"),
    (lambda b, s: (lambda k, c: (c, k / c))(*np.polyfit(1 / b, s, 1)), "1 / steps"),
    (lambda b, s: weighed(b, s, s**-0.5), "not their root or square"),
    (lambda b, s: weighed(b, s, s**-2.0), "not their root or square"),
    (lambda b, s: weighed(b[[0, -1]], s[[0, -1]], None), "leave out no point"),
    (lambda b, s: (s[-1], b[-1]), "lie exactly on"),
    (lambda b, s: None, "`return` missing"),
    (lambda b, s: 300.0, "two numbers"),
]  # fmt: skip


MISTAKES[exercises.check_box_step] = [
    (lambda w, g, m, eps: box(w, -g, m, eps), "downhill"),
    (lambda w, g, m, eps: w + eps * (np.abs(m) + 1) / 2 * np.sign(g), "clip"),
    (lambda w, g, m, eps: box(w, g, w, eps), "centre and width belong to the minimum"),
    (lambda w, g, m, eps: np.clip(box(w, g, w, eps), *_edges(m, eps)), "weights reached: its"),
    (lambda w, g, m, eps: box(m, g, m, eps), "from the minimum again"),
    (lambda w, g, m, eps: np.clip(w + g, *_edges(m, eps)), "the gradient itself"),
    (lambda w, g, m, eps: w + eps * np.abs(m) / 2 * np.sign(g), "weights of zero"),
    (lambda w, g, m, eps: w + eps / 2 * np.sign(g), "moved alike"),
    (lambda w, g, m, eps: np.clip(w + np.sign(g), *_edges(m, eps)), "whole half-width"),
    (box_in_place, "box_in_place changes what it is given"),
    (lambda w, g, m, eps: np.minimum(w + eps * (np.abs(m) + 1) / 2 * np.sign(g), _edges(m, eps)[1]),
     "the lower edge of the box too"),
    (box_by_loop, r"shape \(1, 3\)|raises ValueError"),
    (lambda *a: [box(*a)[0], 0] if np.ndim(a[0]) > 1 else box(*a), r"shape \(1, 3\)"),
    (lambda w, g, m, eps: w, "did not move"),
    (lambda w, g, m, eps: None, "`return` missing"),
    (lambda w, g, m, eps: 1.0, "shape"),
]  # fmt: skip


def _edges(minimum, eps):
    half = eps * (np.abs(minimum) + 1)
    return minimum - half, minimum + half


@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
