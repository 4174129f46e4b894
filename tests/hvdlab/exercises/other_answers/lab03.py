"""Right answers of lab 3 in other styles."""

import math
from functools import reduce
from itertools import pairwise

import numpy as np


def one_list_again(order, size):
    batch = []
    for index in order:
        batch.append(index)
        if len(batch) == size:
            yield batch
            batch.clear()
    if batch:
        yield batch


def shuffled_in_place(x, y, batch_size, learning_rate, epochs, seed=3):
    rng, numbers, path = np.random.default_rng(seed), np.arange(len(x)), [[0, 18]]
    for _ in range(epochs):
        rng.shuffle(numbers)
        for chosen in np.split(numbers, range(batch_size, len(x), batch_size)):
            w, b = path[-1]
            errors = w * x[chosen] + b - y[chosen]
            inner = np.stack([x[chosen], np.ones(len(chosen))])
            path.append([w, b] - learning_rate * 2 / len(chosen) * inner @ errors)
    return np.array(path)


def example_by_example(x, y, batch_size, learning_rate, epochs, seed=1):
    rng, w, b = np.random.default_rng(seed), 0.0, 18.0
    path = [(w, b)]
    for _ in range(epochs):
        left = list(rng.permutation(len(x)))
        while left:
            batch, left = left[:batch_size], left[batch_size:]
            errors = [2 * (w * x[i] + b - y[i]) for i in batch]
            dw = sum(e * x[i] for e, i in zip(errors, batch, strict=True)) / len(batch)
            w, b = w - learning_rate * dw, b - learning_rate * sum(errors) / len(batch)
            path.append((w, b))
    return path


def variance_by_a_loop(x, y, rate, size):
    w = sum(x * y) / sum(x * x)
    b, n = sum(y) / len(y), len(x)
    c = sum(4 * (w * xi + b - yi) ** 2 * xi**2 for xi, yi in zip(x, y, strict=True)) / n
    curvature = 2 * sum(xi**2 for xi in x) / n
    return rate / size * c / curvature / (2 - rate * curvature)


def recursive(network, inputs):
    (weights, bias), *others = network
    outputs = inputs @ weights + bias
    return recursive(others, outputs * (outputs > 0)) if others else outputs


def row_by_row(network, inputs):
    *hidden, (weights, bias) = network
    rows = [
        reduce(lambda values, layer: np.clip(values @ layer[0] + layer[1], 0, None), hidden, row)
        for row in inputs
    ]
    return [list(row @ weights + bias) for row in rows]


def backwards(accuracies, goal, patience):
    for accuracy in accuracies[::-1]:
        if patience == 0 or accuracy < goal:
            break
        patience -= 1
    return patience == 0


def sizes_in_a_loop(seconds, budget):
    good = set()
    for size in seconds:
        kept = [run for run in seconds[size] if run <= budget]
        if len(kept) == len(seconds[size]):
            good.add(size)
    return good


def slopes_that_fall(losses):
    slopes = [after - before for before, after in pairwise(losses)]
    falls = [after < before for before, after in pairwise(slopes)]
    return sum(falls) / len(falls)


batches = [
    one_list_again,
    lambda order, size: [order[start:][:size] for start in range(0, len(order), size)],
    lambda order, size: np.split(order, range(size, len(order), size)),
]
descend = [shuffled_in_place, example_by_example]
noise_variance = [
    variance_by_a_loop,
    lambda x, y, rate, size: (
        rate
        * np.var(2 * x * (np.polyval(np.polyfit(x, y, 1), x) - y))
        / (2 * np.var(x) * (2 - rate * 2 * np.var(x)) * size)
    ),
]
forward = [recursive, row_by_row]
reached = [
    backwards,
    lambda a, goal, patience: len(a) >= patience and min(a[-patience:]) >= goal,
]
seconds_to_goal = [
    lambda s, e, n: {k: n * np.array(e[k]) / s[k] for k in reversed(sorted(e)) if k in s},
    lambda s, e, n: {k: tuple(run / (s[k] / n) for run in e[k]) for k in set(s) & set(e)},
]
within_budget = [
    sizes_in_a_loop,
    lambda s, budget: [k for k, v in s.items() if not np.max(v) > budget and not np.isnan(v).any()],
    lambda s, budget: np.array([k for k, v in s.items() if max(v) <= budget and sum(v) < math.inf]),
]
fraction_downwards = [
    slopes_that_fall,
    lambda losses: np.count_nonzero(np.diff(losses, 2) < 0) / (losses.size - 2),
]
