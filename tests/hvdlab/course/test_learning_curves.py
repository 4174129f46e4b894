"""The nearest neighbour is the one that a loop over all examples finds."""

import numpy as np

from hvdlab.course.learning_curves import learning_curve, nearest_neighbour_error


def test_the_error_is_that_of_a_loop_over_all_examples():
    random = np.random.default_rng(3)
    examples, new = random.uniform(size=(40, 5)), random.uniform(size=(20, 5))
    errors = []
    for point in new:
        nearest = min(examples, key=lambda example: np.linalg.norm(example - point))
        errors.append(nearest.sum() - point.sum())
    expected = np.sqrt(np.mean(np.square(errors)))
    assert np.isclose(nearest_neighbour_error(40, 5, seed=3, tests=20), expected)


def test_a_curve_is_the_mean_of_its_repetitions():
    first = [nearest_neighbour_error(30, 2, seed) for seed in (0, 1)]
    assert np.allclose(learning_curve([30, 60], 2, repetitions=2)[0], np.mean(first))
