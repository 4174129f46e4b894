"""Right answers of lab 3 in other styles."""

import math
from functools import reduce
from itertools import pairwise

import numpy as np
import pandas as pd


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


def review(a, b, c, d):
    return lambda: {"a": a, "b": b, "c": c, "d": d}


def case(examples, batch_size, epochs=1):
    return {"examples": examples, "batch_size": batch_size, "epochs": epochs}


NINE, EIGHT, TEN = case(9, 3), case(8, 4), case(10, 4)


def in_two_stages(train):
    """A few runs choose the learning rate, and many new ones compare it with the small batch."""
    best, choice = math.inf, None
    for step in range(8):
        rate = 0.15 * 1.4**step
        loss = sum(train(1024, rate, seed) for seed in range(5)) / 5
        if loss < best:
            best, choice = loss, rate
    if choice is None:
        return "batch"
    pairs = [(train(1024, choice, seed), train(32, 0.1, seed)) for seed in range(100, 140)]
    return CAUSES[sum(large for large, _ in pairs) > 1.1 * sum(small for _, small in pairs)]


class Table:
    """Medians in a table of all runs."""

    def __init__(self, train):
        settings = [(32, 0.1)] + [(1024, rate) for rate in np.geomspace(0.25, 2, 4)]
        rows = [(*each, train(*each, seed)) for each in settings for seed in range(1, 24)]
        self.runs = pd.DataFrame(rows, columns=["batch", "rate", "loss"]).dropna()

    def verdict(self):
        loss = self.runs.groupby(["batch", "rate"])["loss"].median()
        return CAUSES[int(loss[1024].min() > loss[32].iloc[0])]


def until_it_is_clear(train, seed=5):
    """Drop the worse half of the learning rates, and double the seeds of the others."""
    losses = {rate: [] for rate in (0.2, 0.4, 0.8, 1.6)}
    for repeats in (5, 10, 20):
        for rate, found in losses.items():
            found += [train(1024, rate, seed + n) for n in range(repeats)]
            seed += repeats
        best = sorted(losses, key=lambda rate: np.nan_to_num(np.mean(losses[rate]), nan=np.inf))
        losses = {rate: losses[rate] for rate in best[: -(-len(best) // 2)]}
    (large,) = losses.values()
    small = [train(32, 0.1, seed + n) for n in range(40)]
    return "learning rate" if np.log(large).mean() < np.log(small).mean() else "batch"


CAUSES = "learning rate", "batch"

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
review_descend = [
    review(NINE, "correct", EIGHT, TEN),
    review(case(8, 5), "correct", case(9, 2, epochs=3), case(7, 4, epochs=5)),
    review(case(1, 1), "correct", case(3, 1, epochs=5), case(10, 9)),
]
decide = [in_two_stages, lambda train: Table(train).verdict(), until_it_is_clear]
REFUSED = {
    "review_descend": [
        (review("correct", "correct", EIGHT, TEN), "Patch a is not correct"),
        (review(NINE, NINE, EIGHT, TEN), "It holds in every case that the check tried, too"),
        (review(NINE, "correct", "correct", TEN), "Patch c is not correct"),
        (review(NINE, "correct", EIGHT, "correct"), "Patch d is not correct"),
        (review(case(8, 4), "correct", EIGHT, TEN), "Patch a holds in your case"),
        (review(NINE, "correct", case(8, 8), TEN), "There is another case in which it fails"),
        (review(NINE, "correct", EIGHT, NINE), "Patch d holds in your case"),
        (review(case(4, 5), "correct", EIGHT, TEN), "batch_size from 1 to examples"),
        (
            review({"examples": 9}, "correct", EIGHT, TEN),
            "a dict with the keys examples, batch_size",
        ),
        (review(case(9.0, 3), "correct", EIGHT, TEN), "examples must be like 8. Received: 9.0"),
    ],
    "decide": [
        (
            lambda train: "learning rate",
            "trainings in which the batch is the cause is 0, expected 19",
        ),
        (  # fits the example of the lab
            lambda train: CAUSES[train(1024, 0.1, 1) > 1],
            ", expected 19. The rubric allows one wrong verdict",
        ),
        (
            lambda train: CAUSES[math.isnan(train(1024, 0.8, 1))],
            "on trainings in which the learning rate is the cause",
        ),
        (
            lambda train: CAUSES[min(train(1024, 0.4, s) for s in range(60)) > train(32, 0.1, 1)],
            "on trainings in which the",
        ),
        (lambda train: "both", 'decide must return "learning rate" or "batch". Received: \'both\''),
    ],
}
