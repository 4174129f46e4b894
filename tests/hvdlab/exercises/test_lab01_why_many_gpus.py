"""The right answers of lab 1 pass, and each typical mistake gets its sentence."""

import math

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab01_why_many_gpus as lab


def fit(n, error):
    slope, intercept = np.polyfit(np.log(n), np.log(error), 1)
    return np.exp(intercept), -slope


def with_log10(n, error):
    slope, intercept = np.polyfit(np.log10(n), np.log10(error), 1)
    return 10**intercept, -slope


def two_points(n, error):
    b = -math.log(error[-1] / error[0]) / math.log(n[-1] / n[0])
    return error[0] * n[0] ** b, b


def optimal(operations, ratio):
    n = math.sqrt(operations / (6 * ratio))
    return n, ratio * n


def step(load, compute, exchange, prefetch):
    return max(load, compute + exchange) if prefetch else load + compute + exchange


def ring(size, links):
    n = len(links)
    return 2 * (n - 1) / n * size / min(links)


DAY = 86_400
RIGHT = [
    (lab.check_doubling_months, lambda f, y: 12 * y / math.log2(f)),
    (lab.check_fit_power_law, fit),
    (lab.check_fit_power_law, with_log10),
    (lab.check_examples_for_error, lambda e, a, b: (a / e) ** (1 / b)),
    (lab.check_gpu_days, lambda n, d, p, u: 6 * n * d / p / u / DAY),
    (lab.check_compute_optimal, optimal),
    (lab.check_experiments, lambda h, g, n, e: int(h // (g / (n * e)))),
    (lab.check_step_seconds, step),
    (lab.check_ring_seconds, ring),
]
WRONG = [
    (lab.check_doubling_months, lambda f, y: y / math.log2(f), "These are years"),
    (lab.check_doubling_months, lambda f, y: 12 * y / math.log(f), "math.log2"),
    (lab.check_doubling_months, lambda f, y: 12 * y / f, "take the logarithm"),
    (lab.check_doubling_months, lambda f, y: math.log2(f) / y / 12, "its inverse"),
    (lab.check_fit_power_law, lambda n, e: fit(n, e)[::-1], "The order is a, then b"),
    (lab.check_fit_power_law, lambda n, e: (fit(n, e)[0], -fit(n, e)[1]), "change its sign"),
    (lab.check_fit_power_law, lambda n, e: (np.log(fit(n, e)[0]), fit(n, e)[1]), "np.exp"),
    (lab.check_fit_power_law, lambda n, e: np.polyfit(n, e, 1), "Only their logarithms"),
    (lab.check_fit_power_law, two_points, "You used two of the points"),
    (lab.check_fit_power_law, lambda n, e: (10 ** np.log(fit(n, e)[0]), fit(n, e)[1]), "a pair"),
    (lab.check_fit_power_law, lambda n, e: None, "is `return` missing"),
    (lab.check_examples_for_error, lambda e, a, b: a * e**-b, "Solve error"),
    (lab.check_examples_for_error, lambda e, a, b: (e / a) ** (1 / b), "upside down"),
    (lab.check_examples_for_error, lambda e, a, b: (a / e) ** b, "The power is 1 / b"),
    (lab.check_gpu_days, lambda n, d, p, u: 6 * n * d / p / u, "These are seconds"),
    (lab.check_gpu_days, lambda n, d, p, u: 6 * n * d / p / u / 3600, "These are hours"),
    (lab.check_gpu_days, lambda n, d, p, u: 6 * n * d / p / DAY, "reaches its peak"),
    (lab.check_gpu_days, lambda n, d, p, u: 6 * n * d / p * u / DAY, "divide by it"),
    (lab.check_gpu_days, lambda n, d, p, u: 2 * n * d / p / u / DAY, "the forward pass"),
    (lab.check_compute_optimal, lambda c, r: optimal(c, r)[::-1], "parameters, then tokens"),
    (lab.check_compute_optimal, lambda c, r: optimal(6 * c, r), "The 6 is missing"),
    (lab.check_compute_optimal, lambda c, r: (c / 6 / r, c / 6), "square root is missing"),
    (lab.check_compute_optimal, lambda c, r: (math.sqrt(c / 6),) * 2, "splits the compute equally"),
    (lab.check_compute_optimal, lambda c, r: (optimal(c, r)[0],) * 2, "r times the number"),
    (lab.check_experiments, lambda h, g, n, e: h / (g / (n * e)), "round down"),
    (lab.check_experiments, lambda h, g, n, e: int(h // (g / n)), "forgets the efficiency"),
    (lab.check_experiments, lambda h, g, n, e: g / (n * e), "How many of them fit"),
    (lab.check_experiments, lambda h, g, n, e: h // (g * n), "divide the GPU-hours"),
    (lab.check_step_seconds, lambda a, b, c, p: max(a, b + c), "nothing overlaps"),
    (lab.check_step_seconds, lambda a, b, c, p: a + b + c, "costs no time of its own"),
    (
        lab.check_step_seconds,
        lambda a, b, c, p: max(a, b) + c if p else a + b + c,
        "also in the exchange",
    ),
    (lab.check_ring_seconds, lambda s, k: 2 * (len(k) - 1) / len(k) * s / max(k), "the fastest"),
    (lab.check_ring_seconds, lambda s, k: ring(s, k) / 2, "The factor 2 is missing"),
    (lab.check_ring_seconds, lambda s, k: ring(s, k) * len(k), "one of R pieces"),
    (lab.check_ring_seconds, lambda s, k: s / min(k), "sends nothing"),
    (lab.check_ring_seconds, lambda s, k: s / min(k) if len(k) > 1 else 0, "not all of them"),
    (
        lab.check_ring_seconds,
        lambda s, k: sum(ring(s, [one] * len(k)) for one in k),
        "do not add their times up",
    ),
]


@pytest.mark.parametrize(("check", "answer"), RIGHT)
def test_a_right_answer_passes(check, answer, capsys):
    check(answer)
    assert capsys.readouterr().out.startswith("Right: ")


@pytest.mark.parametrize(("check", "answer", "said"), WRONG)
def test_a_mistake_gets_its_sentence(check, answer, said):
    with pytest.raises(NotYet) as refused:
        check(answer)
    assert said in str(refused.value)
