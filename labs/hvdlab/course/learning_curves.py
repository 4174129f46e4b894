"""Measure a learning curve: the error of a simple predictor that has seen n examples."""

from collections.abc import Iterable

import numpy as np


def nearest_neighbour_error(n: int, numbers: int, seed: int, tests: int = 300) -> float:
    """Return the error of a predictor that answers with the label of the most similar example.

    An example is a point of random numbers between 0 and 1, and its label is their sum.

    Args:
        tests: on how many new points the error is measured. Default 300.

    Returns:
        the root of the mean squared difference between the answer and the label.
    """
    random = np.random.default_rng(seed)
    examples, new = random.uniform(size=(n, numbers)), random.uniform(size=(tests, numbers))
    distances = (examples**2).sum(
        axis=1
    ) - 2 * new @ examples.T  # squared, up to a constant per row
    answers = examples[distances.argmin(axis=1)].sum(axis=1)
    return float(np.sqrt(np.mean((answers - new.sum(axis=1)) ** 2)))


def learning_curve(sizes: Iterable[int], numbers: int, repetitions: int = 5) -> np.ndarray:
    """Return the error for each number of examples, as the mean of some repetitions with different seeds.

    Args:
        repetitions: how many random data sets are averaged. Default 5.
    """
    errors = [
        [nearest_neighbour_error(n, numbers, seed) for seed in range(repetitions)] for n in sizes
    ]
    return np.mean(errors, axis=1)
