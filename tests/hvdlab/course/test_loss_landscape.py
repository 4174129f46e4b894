"""Slices of losses with known closed forms, and the lengths of normalised filters."""

import numpy as np
import pytest

from hvdlab.course.loss_landscape import filter_normalize, random_direction, slice_1d, slice_2d

SHAPES = [(3, 3, 2, 5), (5,), (4, 6), (6,), ()]


@pytest.fixture
def weights():
    rng = np.random.default_rng(7)
    return [rng.normal(size=shape) for shape in SHAPES]


def filters(tensor, axis):
    """The filters of a tensor as rows, the slow way."""
    count = tensor.shape[axis]
    return [np.take(tensor, j, axis=axis).ravel() for j in range(count)]


def test_a_direction_has_the_shapes_and_dtypes_of_the_weights_and_repeats(weights):
    weights[0] = weights[0].astype(np.float32)
    first, again = (random_direction(weights, np.random.default_rng(3)) for _ in range(2))
    assert [d.shape for d in first] == SHAPES
    assert [d.dtype for d in first] == [np.float32] + [np.float64] * 4
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    rng = np.random.default_rng(3)
    one, other = random_direction(weights, rng), random_direction(weights, rng)
    assert not np.allclose(one[0], other[0])


def test_a_direction_is_standard_normal():
    [d] = random_direction([np.ones((200, 500))], np.random.default_rng(0))
    assert abs(d.mean()) < 4 / np.sqrt(d.size)
    assert abs(d.std() - 1) < 0.01


@pytest.mark.parametrize("axis", [-1, 0])
def test_filters_get_the_norms_of_the_weights_and_keep_their_directions(weights, axis):
    direction = random_direction(weights, np.random.default_rng(3))
    normalized = filter_normalize(direction, weights, filter_axis=axis)
    for before, after, w in zip(direction, normalized, weights, strict=True):
        if w.ndim < 2:
            np.testing.assert_array_equal(after, np.zeros_like(w))
            continue
        for d, n, v in zip(*(filters(t, axis) for t in (before, after, w)), strict=True):
            assert np.linalg.norm(n) == pytest.approx(np.linalg.norm(v))
            assert np.dot(n, d) == pytest.approx(np.linalg.norm(n) * np.linalg.norm(d))


def test_filters_of_zeros_stay_zeros():
    weights = [np.array([[0.0, 3.0], [0.0, 4.0]])]
    [normalized] = filter_normalize([np.array([[1.0, 0.0], [1.0, 0.0]])], weights)
    np.testing.assert_array_equal(normalized, np.zeros((2, 2)))


def test_a_rescaled_network_has_the_same_normalized_slice():
    """Ten times the first layer and a tenth of the second is the same ReLU network."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(40, 3)), rng.normal(size=(40, 2))
    small = [rng.normal(size=(3, 8)), rng.normal(size=(8, 2))]
    large = [10 * small[0], small[1] / 10]
    raw = random_direction(small, rng)

    def loss(weights):
        return np.mean((np.maximum(x @ weights[0], 0) @ weights[1] - y) ** 2)

    alphas = np.linspace(-1, 1, 5)
    one, other = (slice_1d(loss, w, filter_normalize(raw, w), alphas) for w in (small, large))
    np.testing.assert_allclose(one, other)
    # and without normalization it has not:
    assert not np.allclose(slice_1d(loss, small, raw, alphas), slice_1d(loss, large, raw, alphas))


def quadratic(weights):
    """sum_i c_i |w_i - i|^2 with c_i = i + 1: slices are parabolas with known coefficients."""
    return sum((i + 1) * np.sum((w - i) ** 2) for i, w in enumerate(weights))


def test_slices_of_a_quadratic_are_the_parabolas_of_the_closed_form(weights):
    rng = np.random.default_rng(3)
    d, e = random_direction(weights, rng), random_direction(weights, rng)

    def dot(a, b):
        return sum((i + 1) * np.sum(u * v) for i, (u, v) in enumerate(zip(a, b, strict=True)))

    r = [w - i for i, w in enumerate(weights)]
    alphas, betas = np.linspace(-1, 2, 7), np.array([-0.5, 0.0, 4.0])
    line = dot(r, r) + 2 * alphas * dot(r, d) + alphas**2 * dot(d, d)
    np.testing.assert_allclose(slice_1d(quadratic, weights, d, alphas), line)
    a, b = np.meshgrid(alphas, betas)
    plane = (
        dot(r, r)
        + 2 * a * dot(r, d)
        + 2 * b * dot(r, e)
        + a**2 * dot(d, d)
        + 2 * a * b * dot(d, e)
        + b**2 * dot(e, e)
    )
    found = slice_2d(quadratic, weights, d, e, alphas, betas)
    assert found.shape == (3, 7) and found.dtype == np.float64
    np.testing.assert_allclose(found, plane)


def test_nothing_is_changed_and_the_loss_may_keep_what_it_gets(weights):
    direction = random_direction(weights, np.random.default_rng(3))
    copies = [[a.copy() for a in arrays] for arrays in (weights, direction)]
    seen = []
    filter_normalize(direction, weights)
    slice_1d(lambda w: seen.append(w) or 0.0, weights, direction, [0.0, 1.0])
    for arrays, before in zip((weights, direction), copies, strict=True):
        for one, other in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(seen[0][0], weights[0])
    np.testing.assert_allclose(seen[1][0], weights[0] + direction[0])


def test_the_loss_gets_the_dtype_of_the_weights():
    seen = []
    weights = [np.ones((2, 2), np.float32), np.ones(2)]
    slice_1d(lambda w: seen.extend(w) or 0.0, weights, [np.ones((2, 2)), np.ones(2)], [0.5])
    assert [w.dtype for w in seen] == [np.float32, np.float64]


def test_a_loss_that_is_not_finite_is_kept():
    found = slice_1d(lambda w: float("nan"), [np.ones(2)], [np.ones(2)], [0.0, 1.0])
    assert np.isnan(found).all()


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda w: filter_normalize(w[:-1], w), "direction must have the shapes of weights"),
        (lambda w: filter_normalize(w, w, filter_axis=1), "filter_axis must be -1 .* or 0"),
        (lambda w: slice_1d(quadratic, w, w[::-1], [0.0]), "direction must have the shapes"),
        (lambda w: slice_2d(quadratic, w, w, w[1:], [0.0], [0.0]), "second must have the shapes"),
        (lambda w: slice_2d(quadratic, w, w[1:], w, [0.0], [0.0]), "first must have the shapes"),
        (lambda w: slice_1d(quadratic, w, w, 0.5), "alphas must be a list"),
        (lambda w: slice_1d(quadratic, w, w, [0.0, np.inf]), "alphas must be a list"),
        (lambda w: slice_2d(quadratic, w, w, w, [0.0], [[0.0]]), "betas must be a list"),
    ],
)
def test_bad_input_is_told_in_one_sentence(weights, call, says):
    with pytest.raises(ValueError, match=says):
        call(weights)
