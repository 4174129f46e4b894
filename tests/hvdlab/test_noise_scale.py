"""The noise scale recovers the parameters of synthetic gradients, and its predictions follow from them."""

import doctest
import math

import numpy as np
import pytest

from hvdlab import noise_scale as module
from hvdlab.noise_scale import NoiseScale, estimate, steps_to_goal

SMALL, RANKS, DRAWS = 8, 4, 10_000
G = np.array([0.6, -0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # |G|^2 = 1
VARIANCES = np.linspace(0.6, 2.6, 10)  # the diagonal of Sigma: trace 16


def norms():
    """Return squared norms of `DRAWS` steps: the mean over ranks before averaging, and the norm after it."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, np.sqrt(VARIANCES / SMALL), (DRAWS, RANKS, len(G)))
    gradients = G + noise
    small = np.square(gradients).sum(2).mean(1)
    return small, np.square(gradients.mean(1)).sum(1)


def test_estimates_are_unbiased_and_their_ratio_is_the_noise_scale():
    g2, s = estimate(*norms(), SMALL, SMALL * RANKS)
    for estimates, truth in ((g2, 1.0), (s, 16.0)):
        standard_error = estimates.std() / math.sqrt(DRAWS)
        assert 4 * standard_error < 0.03 * truth  # otherwise the next assertion would be weak
        assert abs(estimates.mean() - truth) < 4 * standard_error
    assert s.mean() / g2.mean() == pytest.approx(16, rel=0.03)


@pytest.mark.parametrize("small, big", [(1, 2), (1, 60_000), (32, 256), (7, 9)])
def test_expected_norms_give_both_unknowns(small, big):
    # E|gradient|^2 = |G|^2 + tr(Sigma) / B
    g2, s = estimate(0.25 + 50 / small, 0.25 + 50 / big, small, big)
    assert (g2, s) == (pytest.approx(0.25), pytest.approx(50))


def test_estimates_may_be_negative():
    assert estimate(1.0, 0.25, 1, 2) == (-0.5, 1.5)
    assert estimate(1.0, 2.0, 1, 2) == (3.0, -2.0)


def test_smooths_numerator_and_denominator_separately():
    small, big = (values[:50] for values in norms())
    scale = NoiseScale(SMALL, SMALL * RANKS, decay=0.9)
    returned = [scale.update(a, b) for a, b in zip(small, big, strict=True)]
    weights = 0.9 ** np.arange(50)[::-1]
    g2, s = estimate(small, big, SMALL, SMALL * RANKS)
    assert scale.squared_gradient == pytest.approx(np.average(g2, weights=weights))
    assert scale.trace == pytest.approx(np.average(s, weights=weights))
    assert scale.noise_scale == returned[-1] == pytest.approx((weights @ s) / (weights @ g2))


def test_averages_are_means_from_the_first_step():
    scale = NoiseScale(1, 2)
    assert all(map(math.isnan, (scale.noise_scale, scale.trace, scale.squared_gradient)))
    assert scale.update(4.0, 3.0) == 1.0  # estimates of 2 and 2
    assert (scale.squared_gradient, scale.trace) == (pytest.approx(2), pytest.approx(2))


def test_a_negative_gradient_estimate_gives_an_infinite_scale():
    assert NoiseScale(1, 2).update(1.0, 0.25) == math.inf


def test_predictions_by_hand():
    np.testing.assert_allclose(steps_to_goal([100, 400, 4000], 1000, 400), [5000, 2000, 1100])
    assert steps_to_goal(32, 1000, 0) == 1000


def test_steps_and_examples_are_on_one_hyperbola():
    batch = 2.0 ** np.arange(12)
    steps = steps_to_goal(batch, 300, 70)
    np.testing.assert_allclose((steps / 300 - 1) * (batch * steps / (300 * 70) - 1), 1)


@pytest.mark.parametrize("batch", [2, 16, 128])
def test_predictions_are_optimal_on_a_quadratic(batch):
    # The loss h |w|^2 / 2 has G = h w; one step w - rate (G + noise) is expected to end at
    # h (|w - rate G|^2 + rate^2 tr(Sigma) / B) / 2. Its best rate for the true gradient is 1 / h.
    h, w, trace = 4.0, G / 4, VARIANCES.sum()

    def best(variance):
        rates = np.linspace(0, 1 / h, 20_001)
        losses = h / 2 * (np.square(w * (1 - rates[:, None] * h)).sum(1) + rates**2 * variance)
        return losses[0] - losses.min()

    assert best(0) / best(trace / batch) == pytest.approx(steps_to_goal(batch, 1, trace), rel=1e-3)


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: estimate(1.0, 1.0, 8, 8), "big_batch=8"),
        (lambda: estimate(1.0, 1.0, 0, 8), "small_batch=0"),
        (lambda: estimate(-1.0, 1.0, 1, 8), "small_norm2=-1.0"),
        (lambda: estimate(1.0, math.inf, 1, 8), "big_norm2=inf"),
        (lambda: NoiseScale(1, 8).update(math.nan, 1.0), "small_norm2=nan"),
        (lambda: NoiseScale(8, 1), "small_batch=8"),
        (lambda: NoiseScale(1, 8, decay=1.0), "decay=1.0"),
        (lambda: NoiseScale(1, 8, decay=-0.1), "decay=-0.1"),
        (lambda: steps_to_goal(0, 1, 1), "batch=0"),
        (lambda: steps_to_goal(1, 0, 1), "s_min=0"),
        (lambda: steps_to_goal(1, 1, -1), "b_crit=-1"),
    ],
)
def test_names_bad_arguments(call, named):
    with pytest.raises(ValueError, match="Received: ") as error:
        call()
    assert named in str(error.value) and "\n" not in str(error.value)


def test_docstring_examples():
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0
