"""The sharpness of a minimum: how much the loss can rise in a small box around it.

    network.set_weights(minimum)
    value = sharpness(loss_at, gradient_at, minimum)    # in percent of 1 + loss

Source: Keskar et al., On Large-Batch Training for Deep Learning: Generalization Gap and Sharp Minima, 2017,
arXiv:1609.04836, section 2.2.2. The paper searches the box with L-BFGS-B. Here a few steps along the sign of
the gradient give a lower bound.
"""

from collections.abc import Callable, Sequence

import numpy as np

Weights = Sequence[np.ndarray]


def box_step(
    weights: np.ndarray, gradient: np.ndarray, minimum: np.ndarray, eps: float
) -> np.ndarray:
    """Return the weights after one step uphill that stays in the box around the minimum.

    The box reaches half = eps (|minimum| + 1) to both sides of each weight. A step has the length half / 2.

    Args:
        gradient: of the loss there, of the same shape.
        minimum: the centre of the box, of the same shape.
        eps: relative size of the box.
    """
    half = eps * (np.abs(minimum) + 1)
    return np.clip(weights + half / 2 * np.sign(gradient), minimum - half, minimum + half)


def sharpness(
    loss: Callable[[Weights], float],
    gradient: Callable[[Weights], Weights],
    minimum: Weights,
    eps: float = 1e-3,
    steps: int = 8,
    step: Callable[..., np.ndarray] = box_step,
) -> float:
    """Return the largest rise of the loss that was found in the box, in percent of 1 + loss.

    Args:
        eps: relative size of the box. Default 0.001, as in the paper.
        steps: number of steps of the search. Default 8.
        step: one step of the search, with the arguments of `box_step`. Default `box_step`.
    """
    weights, start = list(minimum), loss(minimum)
    worst = start
    for _ in range(steps):
        layers = zip(weights, gradient(weights), minimum, strict=True)
        weights = [step(here, slope, centre, eps) for here, slope, centre in layers]
        worst = max(worst, loss(weights))
    return 100 * (worst - start) / (1 + start)
