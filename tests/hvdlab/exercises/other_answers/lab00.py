"""Right answers of the algebra bridge in other styles."""

import numpy as np


def from_the_largest_component(matrix, vector):
    place = np.argmax(np.abs(vector))
    return (matrix @ vector)[place] / vector[place]


def by_least_squares(matrix, vector):
    return np.linalg.lstsq(vector[:, None], matrix @ vector)[0]


def by_trace_and_determinant(a, b, d):
    trace, determinant = a + d, a * d - b * b
    root = (trace**2 - 4 * determinant) ** 0.5
    return [(trace - root) / 2, (trace + root) / 2]


def by_deviations(values, n):
    deviations = values - sum(values) / len(values)
    return float(np.mean(deviations**2)) / n


def with_a_loop(losses, distance):
    return [
        (after - 2 * here + before) / distance / distance
        for before, here, after in zip(losses, losses[1:], losses[2:], strict=False)
    ]


eigenvalue_of = [from_the_largest_component, by_least_squares]
eigenvalues = [by_trace_and_determinant, lambda a, b, d: np.linalg.eigvalsh([[a, b], [b, d]])]
variance_of_mean = [by_deviations, lambda values, n: (np.std(values) / np.sqrt(n)) ** 2]
curvature = [with_a_loop, lambda losses, distance: np.diff(losses, 2) / distance**2]
