"""Right answers of lab 2 in other styles."""

import math

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh


def by_differences(w, b, x, y, h=1e-4):
    def loss(w, b):
        return np.mean((w * x + b - y) ** 2)

    return (loss(w + h, b) - loss(w, b)) / h, (loss(w, b + h) - loss(w, b)) / h


def as_matrix_product(w, b, x, y):
    inputs = np.stack([x, np.ones_like(x)], axis=1)
    return 2 / len(x) * inputs.T @ (inputs @ np.array([w, b]) - y)


def with_lists(x, y, learning_rate, steps=1000, stop=None):
    path, losses = [], []
    w, b = 0, 18
    while True:
        errors = [w * xi + b - yi for xi, yi in zip(x, y, strict=True)]
        losses.append(sum(e * e for e in errors) / len(errors))
        path.append([w, b, losses[-1]])
        if len(path) == steps + 1 or len(path) > 1 and stop is not None and stop(losses):
            return path
        w, b = (
            w - learning_rate * 2 * sum(e * xi for e, xi in zip(errors, x, strict=True)) / len(x),
            b - learning_rate * 2 * sum(errors) / len(x),
        )


def vectorised(x, y, learning_rate, steps=1000, stop=None):
    inputs, theta = np.stack([x, np.ones_like(x)], axis=1), np.array([0.0, 18.0])
    rows = np.empty((steps + 1, 3))
    for step in range(steps + 1):
        rows[step] = *theta, np.square(inputs @ theta - y).mean()
        if step and stop and stop(list(rows[: step + 1, 2])):
            return rows[: step + 1]
        theta = theta - learning_rate * 2 / len(x) * inputs.T @ (inputs @ theta - y)
    return rows


def with_numpy(losses):
    return (
        np.size(losses) > 1
        and np.isfinite(losses[-1])
        and abs(np.diff(losses)[-1]) / losses[-2] < 1e-3
    )


def with_early_returns(losses):
    if len(losses) < 2:
        return False
    before, now = losses[-2:]
    if not math.isfinite(now):
        return False
    return abs(before - now) / before < 0.001


def steps_by_a_loop(condition, reduction):
    distance, steps = 1.0, 0
    while distance > 1 / reduction:
        distance *= (condition - 1) / (condition + 1)
        steps += 1
    return steps


def steps_in_base_10(k, reduction):
    if k == 1:
        return 1
    return int(np.ceil(np.log10(reduction) / np.log10((k + 1) / (k - 1))))


def review(a, b, c, d):
    return lambda: {"a": a, "b": b, "c": c, "d": d}


def case(x, y, steps=20):
    return {"x": x, "y": y, "steps": steps}


NOT_CENTRED, CLOSE = case([1.0, 3.0], [4.0, 6.0]), case([0.1, 0.3], [4.0, 6.0])
FAR_AND_CLOSE = case([5, 6, 7], [1, -4, 2], steps=300)


def by_trial_descents(gradient_at, theta):
    """Bisection: a descent of the distance from theta grows at the end, or it does not."""
    here, v = gradient_at(theta), np.random.default_rng(5).normal(size=theta.size)

    def grows(learning_rate):
        distance = v
        for _ in range(30):
            before, distance = (
                distance,
                distance - learning_rate * (gradient_at(theta + distance) - here),
            )
        return np.linalg.norm(distance) > np.linalg.norm(before)

    v = gradient_at(theta + v) - here  # longer in the steep directions
    low, high = None, np.linalg.norm(v) / np.linalg.norm(gradient_at(theta + v) - here)
    while not grows(high):
        low, high = high, 4 * high
    while low is None or high / low > 1.05:
        middle = high / 4 if low is None else math.sqrt(low * high)
        low, high = (low, middle) if grows(middle) else (middle, high)
    return math.sqrt(low * high)


def by_lanczos(gradient_at, theta):
    def product(v):
        return (gradient_at(theta + v.ravel()) - gradient_at(theta - v.ravel())) / 2

    if theta.size < 3:
        return 2 / np.linalg.eigvalsh(np.stack([product(v) for v in np.eye(theta.size)]))[-1]
    hessian = LinearOperator((theta.size, theta.size), matvec=product, dtype=float)
    return 2 / eigsh(hessian, k=1, tol=0.01, return_eigenvectors=False)[0]


class PowerIteration:
    """Stops when an eigenvalue hardly changes any more."""

    def __init__(self, gradient_at, theta):
        self.gradient_at, self.theta = gradient_at, theta

    def eigenvalue(self):
        v, before, now = np.random.uniform(-1, 1, self.theta.shape), 0, 1
        while not math.isclose(before, now, rel_tol=2e-4):
            v = v / np.sqrt(sum(v**2)) * 1e-3
            ahead, behind = self.gradient_at(self.theta + v), self.gradient_at(self.theta - v)
            v, before, now = (ahead - behind) / 2, now, np.linalg.norm(ahead - behind) / 2e-3
        return now


def in_place(gradient_at, theta):
    theta += 1
    return 2 / np.linalg.norm(gradient_at(theta))


def by_the_whole_hessian(gradient_at, theta):
    here = gradient_at(theta)
    rows = [gradient_at(theta + axis) - here for axis in np.eye(theta.size)]
    return 2 / np.linalg.eigvalsh(np.stack(rows))[-1]


gradient = [by_differences, as_matrix_product]
descend = [with_lists, vectorised]
has_converged = [with_numpy, with_early_returns]
hessian = [
    lambda x: 2 / len(x) * np.vander(x, 2).T @ np.vander(x, 2),
    lambda x: [[2 * sum(x**2) / len(x), 2 * sum(x) / len(x)], [2 * sum(x) / len(x), 2]],
]
largest_step_size = [
    lambda x: 2 / np.linalg.norm(2 / len(x) * np.vander(x, 2).T @ np.vander(x, 2), 2),
    lambda x: 2 / (np.mean(x**2) + 1 + math.sqrt((np.mean(x**2) - 1) ** 2 + 4 * np.mean(x) ** 2)),
]
steps_needed = [steps_by_a_loop, steps_in_base_10]
review_fit = [
    review(NOT_CENTRED, "correct", CLOSE, "correct"),
    review(case([-4, -4, -4], [9, 9, 8.5], 1), "correct", FAR_AND_CLOSE, "correct"),
    review(case([0.5, 1], [0, 1], 1000), "correct", case([2.0], [5.0], 1), "correct"),
]
learning_rate_limit = [
    by_trial_descents,
    by_lanczos,
    lambda gradient_at, theta: 2 / PowerIteration(gradient_at, theta).eigenvalue(),
]
REFUSED = {
    "review_fit": [
        (review("correct", "correct", CLOSE, "correct"), "Patch a is not correct"),
        (review(NOT_CENTRED, "correct", "correct", "correct"), "Patch c is not correct"),
        (review(NOT_CENTRED, NOT_CENTRED, CLOSE, "correct"), "Patch b holds in your case"),
        (review(CLOSE, "correct", CLOSE, "correct"), "There is another case in which it fails"),
        (review(NOT_CENTRED, "correct", CLOSE, NOT_CENTRED), "It holds in every case"),
        (review(NOT_CENTRED, "correct", CLOSE, case([1], [1], 20)), "Patch d holds in your case"),
        (review(case([], []), "correct", CLOSE, "correct"), "must be of equal length"),
        (review(case([1e9], [1]), "correct", CLOSE, "correct"), "numbers from -10,000 to 10,000"),
        (
            review(NOT_CENTRED, "correct", case([1], [1], 0), "correct"),
            "steps must be from 1 to 1000",
        ),
        (review({"x": [1.0]}, "correct", CLOSE, "correct"), "a dict with the keys x, y, steps"),
    ],
    "learning_rate_limit": [
        (lambda gradient_at, theta: 2 / 18, "one parameter and the curvature 0.001 is 5.556e-05"),
        (in_place, "changes what it is given"),
        (
            by_the_whole_hessian,
            "For a loss with 600 parameters learning_rate_limit calls gradient_at more",
        ),
        (
            lambda gradient_at, theta: 0.0,
            "as a multiple of the limit, for a loss with the curvatures 18",
        ),
        (lambda gradient_at, theta: theta, "must return one number"),
    ],
}
