"""The search of the box finds the corner where a quadratic loss is largest."""

import numpy as np
import pytest

from hvdlab.course.sharpness import sharpness


def loss(weights):
    (w,) = weights
    return float(np.sum([1.0, 100.0] * w**2))


def gradient(weights):
    (w,) = weights
    return [2 * np.array([1.0, 100.0]) * (w + 1e-9)]  # it pushes away from the exact minimum


def test_the_corner_of_the_box_of_a_quadratic_loss():
    # Both weights of the minimum are 0, so the box reaches 0.01 to each side.
    found = sharpness(loss, gradient, [np.zeros(2)], eps=0.01)
    assert found == pytest.approx(100 * (1 + 100) * 0.01**2)


def test_two_steps_reach_the_edge_and_one_does_not():
    found = [sharpness(loss, gradient, [np.zeros(2)], eps=0.01, steps=n) for n in (1, 2, 3)]
    assert found[0] == pytest.approx(found[1] / 4)
    assert found[1] == found[2]


def test_a_step_of_the_learner_is_used():
    assert sharpness(loss, gradient, [np.zeros(2)], step=lambda w, g, m, eps: w) == 0
