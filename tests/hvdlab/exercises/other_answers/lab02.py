"""Right answers of lab 2 in other styles."""

import math

import numpy as np


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
