"""The checks of lab 2 take the right answers, and name what is wrong with the usual others."""

import math

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises.lab02_gradient_descent import (
    check_descend,
    check_gradient,
    check_has_converged,
    check_hessian,
    check_largest_step_size,
    check_steps_needed,
)

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)


def gradient(w, b, x, y):
    error = w * x + b - y
    return 2 * np.mean(error * x), 2 * np.mean(error)


def by_differences(w, b, x, y, h=1e-4):
    def loss(w, b):
        return np.mean((w * x + b - y) ** 2)

    return (loss(w + h, b) - loss(w, b)) / h, (loss(w, b + h) - loss(w, b)) / h


def overwrites_y(w, b, x, y):
    y -= w * x + b
    return -2 * np.mean(y * x), -2 * np.mean(y)


def by_less(w, b, x, y):
    return tuple(part * len(x) / (len(x) - 1) for part in gradient(w, b, x, y))


def of_three(w, b, x, y):
    return 2 / 3 * sum(error(w, b, x, y) * x), 2 / 3 * sum(error(w, b, x, y))


def has_converged(losses):
    return len(losses) > 1 and abs(losses[-1] - losses[-2]) < 0.001 * losses[-2]


def hessian(x):
    return 2 * np.array([[np.mean(x * x), np.mean(x)], [np.mean(x), 1.0]])


def largest_step_size(x):
    return 2 / np.linalg.eigvalsh(hessian(x))[-1]


def descend(
    x, y, learning_rate, steps=1000, stop=None, start=0, sign=-1, stale=False, one_by_one=False
):
    w, b = 0.0, 18.0
    rows = [(w, b, np.mean(error(w, b, x, y) ** 2))]
    for _ in range(steps):
        dw, db = gradient(w, b, x, y)
        last, w = np.mean(error(w, b, x, y) ** 2), w + sign * learning_rate * dw
        if one_by_one:
            db = gradient(w, b, x, y)[1]
        b = b + sign * learning_rate * db
        rows.append((w, b, last if stale else np.mean(error(w, b, x, y) ** 2)))
        if stop and stop([row[2] for row in rows[start:]]):
            break
    return np.array(rows[start:])


def by_a_loop(condition_number, reduction):
    distance, steps = 1.0, 0
    while distance > 1 / reduction:
        distance *= (condition_number - 1) / (condition_number + 1)
        steps += 1
    return steps


def steps_needed(condition_number, reduction, rounded=math.ceil):
    factor = (condition_number - 1) / (condition_number + 1)
    return rounded(math.log(reduction) / -math.log(factor)) if factor else 1


def test_right_answers_pass(capsys):
    check_gradient(gradient)
    check_gradient(lambda w, b, x, y: np.array(gradient(w, b, x, y)))
    check_gradient(by_differences)
    check_has_converged(has_converged)
    check_has_converged(lambda losses: bool(has_converged(losses)))
    check_largest_step_size(largest_step_size)
    check_descend(descend)
    check_hessian(hessian)
    check_hessian(lambda x: 2 / len(x) * np.vander(x, 2).T @ np.vander(x, 2))
    check_steps_needed(steps_needed)
    check_steps_needed(by_a_loop)
    assert capsys.readouterr().out.count("Right:") == 11


def error(w, b, x, y):
    return w * x + b - y


MISTAKES[check_gradient] = [
    (lambda w, b, x, y: (-gradient(w, b, x, y)[0], -gradient(w, b, x, y)[1]), "signs are reversed"),
    (lambda w, b, x, y: (2 * sum(error(w, b, x, y) * x), 2 * sum(error(w, b, x, y))),
     "Sum instead of mean"),
    (lambda w, b, x, y: (sum(error(w, b, x, y) * x), sum(error(w, b, x, y))), "Sum.*the 2 "),
    (lambda w, b, x, y: (np.mean(error(w, b, x, y) * x), np.mean(error(w, b, x, y))), "The 2 from"),
    (lambda w, b, x, y: gradient(w, b, x, y)[::-1], "order is dL/dw"),
    (lambda w, b, x, y: (2 * np.mean(error(w, b, x, y)),) * 2, "multiplied by its x"),
    (lambda w, b, x, y: gradient(w, 0, x, y), "without b"),
    (lambda w, b, x, y: gradient(w, b, np.arange(9.0), np.ones(9)), "Other data"),
    (lambda w, b, x, y: (1.0, gradient(w, b, x, y)[1]), r"errors.*are -1, 2, -3"),
    (lambda w, b, x, y: error(w, b, x, y), "two numbers"),
    (overwrites_y, "overwrites_y changes what it is given"),
    (by_less, "not by n - 1"),
    (of_three, r"not for five.*\(-8, -2\)"),
    (lambda w, b, x, y: 1.0, "two numbers"),
]  # fmt: skip


def relative(losses):
    return (losses[-2] - losses[-1]) / losses[-2]


MISTAKES[check_has_converged] = [
    (lambda losses: abs(relative(losses)) < 0.001, "raises IndexError"),
    (lambda losses: len(losses) > 1 and relative(losses) < 0.001, "diverges"),
    (lambda losses: len(losses) > 1 and abs(relative(losses)) < 0.1, "falls by 1 %"),
    (lambda losses: len(losses) > 1 and abs(losses[-1] - losses[-2]) < 0.001, "0.05 %"),
    (lambda losses: len(losses) > 1 and abs(losses[-1] - losses[-2]) < 0.1, "small and halves"),
    (lambda losses: len(losses) > 1 and abs(losses[-1] - losses[0]) < 0.001 * losses[0],
     "does not change any more"),
    (lambda losses: len(losses) > 1 and not abs(relative(losses)) >= 0.001, "NaN"),
    (lambda losses: len(losses) > 1 and abs(relative(losses)) < 0.005, "0.2 %"),
    (lambda losses: len(losses) > 1 and abs(losses[-1] - losses[-2]) / losses[-1] < 0.01, "0.2 %"),
    (lambda losses: len(losses) > 1 and abs(losses[-1] - losses[-2]) < 0.001 * losses[0],
     "0.5 % of the loss before it"),
    (lambda losses: len(losses) > 1 and 0 <= relative(losses) < 0.001, "grows by 0.05 %"),
    (lambda losses: len(losses) > 2 and abs(relative(losses)) < 0.001, "two losses are enough"),
    (lambda losses: any(relative(losses[:n]) == 0 for n in range(2, len(losses) + 1)),
     "stood still once"),
    (lambda losses: True, "No loss yet"),
    (lambda losses: False, "does not change any more"),
    (lambda losses: 0, "True or False"),
]  # fmt: skip


MISTAKES[check_largest_step_size] = [
    (lambda x: 2 / np.linalg.eigvalsh(hessian(x))[0], "smallest eigenvalue"),
    (lambda x: 1 / np.linalg.eigvalsh(hessian(x))[-1], "twice that still converges"),
    (lambda x: 2 / np.linalg.eigvalsh(hessian(x) / 2)[-1], "factor 2"),
    (lambda x: 2 / np.trace(hessian(x)), "sum of the eigenvalues"),
    (lambda x: np.linalg.eigvalsh(hessian(x))[-1] / 2, "upside down"),
    (lambda x: np.linalg.eigvalsh(hessian(x))[-1], "divided by it"),
    (lambda x: 2 / max(2 * np.mean(x * x), 2), "mean of x outside the diagonal"),
    (lambda x: 2 / np.linalg.eigvalsh(hessian(x) * len(x))[-1], "Sum instead of mean"),
    (lambda x: 2 / np.linalg.eigvals(hessian(x))[0], "eigenvalue that is not"),
    (lambda x: 0.3, "eigenvalues are 18 and 2"),
    (lambda x: np.ones(2), "one number"),
    (lambda x: math.nan, "is nan, expected 0.1111"),
]  # fmt: skip


MISTAKES[check_descend] = [
    (lambda *a: descend(*a, start=1), "yours has 3: the start is the first row"),
    (lambda x, y, rate, steps, stop=None: descend(x, y, rate, steps + 1, stop, start=1),
     "The start, w=0 and b=18, is missing"),
    (lambda *a: descend(*a, sign=1), "subtract it"),
    (lambda *a: descend(*a, one_by_one=True), "changed w before you computed dL/db"),
    (lambda x, y, rate, *a: descend(x, y, 1.0, *a), "learning rate is missing"),
    (lambda *a: descend(*a, stale=True), "that of the point before"),
    (lambda x, y, rate, steps, stop=None: descend(x, y, rate, steps), "never calls stop"),
    (lambda x, y, rate, steps, stop=None: descend(x, y, rate, steps, stop and (lambda one: stop(one[1:]))),
     "must get 2 losses.*It got 1"),
    (lambda x, y, rate, steps, stop=None:
     descend(x, y, rate, steps, stop and (lambda one: stop(one) and False)), "must return 3 rows.*51"),
    (lambda *a: descend(*a)[:, :2], r"shape of yours is \(4, 2\)"),
    (lambda *a: None, "is `return` missing"),
]  # fmt: skip


MISTAKES[check_hessian] = [
    (lambda x: hessian(x) / 2, "factor 2, which is missing"),
    (lambda x: hessian(x) * len(x), "Sum instead of mean"),
    (lambda x: hessian(x)[::-1, ::-1], "order is w, then b"),
    (lambda x: 2 * np.array([[np.mean(x) ** 2, np.mean(x)], [np.mean(x), 1]]), "square of the mean"),
    (lambda x: np.diag(np.diag(hessian(x))), "mixed derivatives"),
    (lambda x: hessian(x) - np.diag([0, 2]), "is 2, and not 0"),
    (lambda x: np.array([[10.0, 4], [4, 2]]), "Use the x that is passed"),
    (lambda x: np.diag(hessian(x)), "shape"),
]  # fmt: skip


MISTAKES[check_steps_needed] = [
    (lambda k, r: steps_needed(k, r, math.floor), "Round up"),
    (lambda k, r: steps_needed(k, r, float), "whole number"),
    (lambda k, r: math.ceil(math.log(r) / -math.log((k - 1) / k)), "has the denominator k"),
    (lambda k, r: math.ceil(math.log(r) / math.log((k - 1) / (k + 1))), "minus this logarithm"),
    (lambda k, r: math.ceil(steps_needed(k, r, float) / 2), "about the distance"),
    (lambda k, r: steps_needed(k, r) if k > 1 else 0, "first step reaches the minimum"),
    (lambda k, r: math.ceil(math.log(r) / -math.log((k - 1) / (k + 1))), "raises ValueError"),
    (lambda k, r: 6, "leaves 0.5 of the distance"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
