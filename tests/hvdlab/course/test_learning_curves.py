"""The nearest neighbour is the one that a loop over all examples finds."""

import numpy as np

from hvdlab.course.learning_curves import nearest_neighbour_error


def test_the_error_is_that_of_a_loop_over_all_examples():
    random = np.random.default_rng(3)
    examples, new = random.uniform(size=(40, 5)), random.uniform(size=(20, 5))
    errors = []
    for point in new:
        nearest = min(examples, key=lambda example: np.linalg.norm(example - point))
        errors.append(nearest.sum() - point.sum())
    expected = np.sqrt(np.mean(np.square(errors)))
    assert np.isclose(nearest_neighbour_error(40, 5, seed=3, tests=20), expected)
