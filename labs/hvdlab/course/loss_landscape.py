"""Slices through a loss surface: how the loss changes along random directions in weight space.

    rng = np.random.default_rng(1)
    weights = model.get_weights()
    direction = filter_normalize(random_direction(weights, rng), weights)
    losses = slice_1d(loss, weights, direction, np.linspace(-1, 1, 21))

`weights` is a list of arrays and `loss(weights)` returns a number: no framework is needed. With
Keras, `loss` calls `model.set_weights(weights)` and then `model.evaluate`.

Two networks may be the same function at other scales of their weights (with ReLU or batch norm one
layer times ten and the next divided by ten changes nothing), and then the smaller weights look
sharper. A direction whose filters are as long as the filters of the network takes that away: one
unit along it changes each filter by 100 %.

NOTE: weights that are not trained (the moving averages of a batch norm) belong into the list, or the
network would be evaluated with the averages of other weights; as 1-D tensors they stay unchanged.

Source: Li, Xu, Taylor, Studer, Goldstein, Visualizing the Loss Landscape of Neural Nets, NeurIPS
2018, arXiv:1712.09913, section 4.
"""

from collections.abc import Callable, Sequence

import numpy as np


def random_direction(weights: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Return standard normal numbers: a list of arrays with the shapes and dtypes of `weights`.

    Args:
        weights: list of arrays.
        rng: what `np.random.default_rng(seed)` returns; one seed, one direction.
    """
    weights = [np.asarray(w) for w in weights]
    return [rng.standard_normal(w.shape).astype(np.result_type(w, np.float32)) for w in weights]


def filter_normalize(
    direction: Sequence[np.ndarray], weights: Sequence[np.ndarray], filter_axis: int = -1
) -> list[np.ndarray]:
    """Return the direction with each filter as long as the same filter of the weights.

        d_ij <- d_ij / ||d_ij|| ||w_ij||        filter j of layer i; the Frobenius norm

    A filter is what makes one output: one index of `filter_axis`. A filter of zeros stays zeros.
    Tensors of at most one dimension (biases, scales and averages of norms) become zeros: the slice
    leaves them as they are.

    Args:
        direction, weights: lists of arrays with the same shapes.
        filter_axis: -1 for kernels of Keras (height, width, in, out), 0 for those of PyTorch (out,
            in, height, width).

    Returns:
        A list of arrays with the shapes of `direction`, which is not changed.

    Raises:
        ValueError: the shapes differ, or filter_axis is neither 0 nor -1.

    Source: arXiv:1712.09913, section 4.
    """
    if filter_axis not in (0, -1):
        raise ValueError(
            f"filter_axis must be -1 (Keras) or 0 (PyTorch). Received: filter_axis={filter_axis!r}"
        )
    _check_shapes("direction", direction, weights)
    return [_normalize(*pair, filter_axis) for pair in zip(direction, weights, strict=True)]


def slice_1d(
    loss: Callable[[list[np.ndarray]], float],
    weights: Sequence[np.ndarray],
    direction: Sequence[np.ndarray],
    alphas: Sequence[float],
) -> np.ndarray:
    """Return loss(weights + alpha direction) for each alpha: float64 of shape (len(alphas),).

    Args:
        loss: takes a list of arrays, returns a number.
        weights, direction: lists of arrays with the same shapes; neither is changed.
        alphas: numbers, shape (m,).

    Raises:
        ValueError: the shapes differ, or alphas is not a 1-D list of finite numbers.
    """
    _check_shapes("direction", direction, weights)
    return np.array([float(loss(_add(weights, (a, direction)))) for a in _line("alphas", alphas)])


def slice_2d(
    loss: Callable[[list[np.ndarray]], float],
    weights: Sequence[np.ndarray],
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    alphas: Sequence[float],
    betas: Sequence[float],
) -> np.ndarray:
    """Return loss(weights + alpha first + beta second): float64 of shape (len(betas), len(alphas)).

    Row by beta and column by alpha is what `axes.contour(alphas, betas, losses)` takes.

    Args:
        loss: takes a list of arrays, returns a number.
        weights, first, second: lists of arrays with the same shapes; none is changed.
        alphas, betas: numbers, shapes (m,) and (n,).

    Raises:
        ValueError: the shapes differ, or alphas or betas is not a 1-D list of finite numbers.
    """
    _check_shapes("first", first, weights)
    _check_shapes("second", second, weights)
    alphas, betas = _line("alphas", alphas), _line("betas", betas)
    losses = [[float(loss(_add(weights, (a, first), (b, second)))) for a in alphas] for b in betas]
    return np.array(losses)


def _normalize(d, w, filter_axis):
    d, w = np.asarray(d), np.asarray(w)
    if d.ndim < 2:
        return np.zeros_like(d)
    others = tuple(range(d.ndim - 1)) if filter_axis == -1 else tuple(range(1, d.ndim))
    lengths = np.sqrt(np.square(d, dtype=np.float64).sum(others, keepdims=True))
    wanted = np.sqrt(np.square(w, dtype=np.float64).sum(others, keepdims=True))
    scale = np.divide(wanted, lengths, out=np.zeros_like(wanted), where=lengths > 0)
    return (d * scale).astype(d.dtype)


def _add(weights, *moves):
    """weights + number * direction for each (number, direction), in the dtype of the weights."""
    moved = [np.array(w, dtype=np.result_type(np.asarray(w), np.float32)) for w in weights]
    for number, direction in moves:
        for w, d in zip(moved, direction, strict=True):
            w += (number * np.asarray(d)).astype(w.dtype)
    return moved


def _check_shapes(name, direction, weights):
    shapes = [np.shape(d) for d in direction], [np.shape(w) for w in weights]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{name} must have the shapes of weights. Received: {shapes[0]}, weights {shapes[1]}"
        )


def _line(name, numbers):
    line = np.asarray(numbers, dtype=np.float64)
    if line.ndim != 1 or not np.isfinite(line).all():
        raise ValueError(f"{name} must be a list of finite numbers. Received: {name}={numbers!r}")
    return line
