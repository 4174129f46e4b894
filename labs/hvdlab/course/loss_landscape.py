"""Slices through a loss surface: how the loss changes along random directions in weight space.

    rng = np.random.default_rng(1)
    weights = model.get_weights()
    direction = filter_normalize(random_direction(weights, rng), weights)
    losses = slice_1d(loss, weights, direction, np.linspace(-1, 1, 21))

`weights` is a list of arrays and `loss(weights)` returns a number, so no framework is needed. With Keras,
`loss` calls `model.set_weights(weights)` and then `model.evaluate`.

Two networks can be the same function with weights of different scale. For example, with ReLU or batch norm
nothing changes if one layer is multiplied by ten and the next divided by ten. The network with the smaller
weights then looks sharper. Filter normalisation removes this effect: each filter of the direction gets the
length of the network's filter, so one unit along the direction changes each filter by 100 %.

NOTE: the list must also contain weights that are not trained (the moving averages of a batch norm).
Otherwise the network would be evaluated with the averages of other weights. These 1-D arrays do not change
along a slice.

Source: Li, Xu, Taylor, Studer, Goldstein, Visualizing the Loss Landscape of Neural Nets, NeurIPS
2018, arXiv:1712.09913, section 4.
"""

from collections.abc import Callable, Sequence

import numpy as np


def random_direction(weights: Sequence[np.ndarray], rng: np.random.Generator) -> list[np.ndarray]:
    """Return arrays of standard normal numbers with the shapes and dtypes of `weights`."""
    weights = [np.asarray(w) for w in weights]
    return [rng.standard_normal(w.shape).astype(np.result_type(w, np.float32)) for w in weights]


def filter_normalize(
    direction: Sequence[np.ndarray], weights: Sequence[np.ndarray], filter_axis: int = -1
) -> list[np.ndarray]:
    """Return a direction in which each filter has the length of the same filter of the weights.

        d_ij <- d_ij / ||d_ij|| ||w_ij||        filter j of layer i; the Frobenius norm

    A filter is the set of weights that computes one output, at one index of `filter_axis`. A filter of
    zeros stays zeros. Arrays of at most one dimension (biases, scales and averages of norms) become zeros,
    so they do not change along the slice.

    Args:
        filter_axis: -1 (default) for kernels of Keras (height, width, in, out), 0 for those of PyTorch
            (out, in, height, width).

    Returns:
        a list of arrays with the same shapes.

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
        alphas: distances along the direction, shape (m,).

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

    The rows belong to betas and the columns to alphas, as in `axes.contour(alphas, betas, losses)`.

    Args:
        alphas: distances along `first`, shape (m,).
        betas: distances along `second`, shape (n,).

    Raises:
        ValueError: the shapes differ, or alphas or betas is not a 1-D list of finite numbers.
    """
    _check_shapes("first", first, weights)
    _check_shapes("second", second, weights)
    alphas, betas = _line("alphas", alphas), _line("betas", betas)
    losses = [[float(loss(_add(weights, (a, first), (b, second)))) for a in alphas] for b in betas]
    return np.array(losses)


def _normalize(d: np.ndarray, w: np.ndarray, filter_axis: int) -> np.ndarray:
    d, w = np.asarray(d), np.asarray(w)
    if d.ndim < 2:
        return np.zeros_like(d)
    others = tuple(range(d.ndim - 1)) if filter_axis == -1 else tuple(range(1, d.ndim))
    lengths = np.sqrt(np.square(d, dtype=np.float64).sum(others, keepdims=True))
    wanted = np.sqrt(np.square(w, dtype=np.float64).sum(others, keepdims=True))
    scale = np.divide(wanted, lengths, out=np.zeros_like(wanted), where=lengths > 0)
    return (d * scale).astype(d.dtype)


def _add(
    weights: Sequence[np.ndarray], *moves: tuple[float, Sequence[np.ndarray]]
) -> list[np.ndarray]:
    """Return weights + number * direction over all (number, direction), in the dtype of the weights."""
    moved = [np.array(w, dtype=np.result_type(np.asarray(w), np.float32)) for w in weights]
    for number, direction in moves:
        for w, d in zip(moved, direction, strict=True):
            w += (number * np.asarray(d)).astype(w.dtype)
    return moved


def _check_shapes(
    name: str, direction: Sequence[np.ndarray], weights: Sequence[np.ndarray]
) -> None:
    shapes = [np.shape(d) for d in direction], [np.shape(w) for w in weights]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{name} must have the shapes of weights. Received: {shapes[0]}, weights {shapes[1]}"
        )


def _line(name: str, numbers: Sequence[float]) -> np.ndarray:
    line = np.asarray(numbers, dtype=np.float64)
    if line.ndim != 1 or not np.isfinite(line).all():
        raise ValueError(f"{name} must be a list of finite numbers. Received: {name}={numbers!r}")
    return line
