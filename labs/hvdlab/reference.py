"""Reference formulas of this package in NumPy. Tests compare the torch and Keras classes with them.

Each function computes one update of *one* parameter tensor. It changes no array in place. Arrays keep their
dtype, so float64 inputs give float64 results. The norm ||.|| is the L2 norm of the whole tensor.

If a norm is 0, the ratio of norms counts as 1, so that a tensor of zeros can change. NaN and infinite
gradients lead to NaN weights, as in the optimizers of both frameworks.
"""

import numpy as np


def norm(x: np.ndarray) -> np.ndarray:
    """Return the L2 norm of all elements of an array."""
    return np.sqrt(np.sum(np.square(x)))


# --- optimizers ------------------------------------------------------------------------------------


def lars(
    w: np.ndarray,
    g: np.ndarray,
    velocity: np.ndarray,
    learning_rate: float,
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust_coefficient: float = 0.001,
    eps: float = 0.0,
    clip: bool = False,
    nesterov: bool = False,
    momentum_form: str = "torch",
    adapt: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (w, velocity) after an update of LARS, or of LARC with `clip=True`.

        local = trust_coefficient ||w|| / (||g|| + weight_decay ||w|| + eps)     LARC: at most learning_rate
        "torch":  v <- momentum v + local u,                 w <- w - learning_rate v
        "paper":  v <- momentum v + learning_rate local u,   w <- w - v
        with u = g + weight_decay w

    LARC divides by the learning rate first, min(local / learning_rate, 1), so that the step is min(local,
    learning_rate) u. The two forms differ only while the learning rate changes: "torch" multiplies old
    gradients by the new learning rate.

    Args:
        w: weights.
        g: gradient, of the same shape.
        velocity: of the update before, of the same shape; zeros at first.
        learning_rate: the global learning rate of this step.
        momentum: default 0.9.
        weight_decay: default 0.
        trust_coefficient: default 0.001.
        eps: default 0.
        clip: compute LARC. Default False.
        nesterov: use Nesterov momentum. Default False.
        momentum_form: "torch" (default) or "paper".
        adapt: False: the plain update without decay or layer-wise learning rate, as for 1-D tensors.

    Source: You, Gitman, Ginsburg, Large Batch Training of Convolutional Networks, 2017, algorithm
    1, arXiv:1708.03888; LARC: the same authors' implementation in NVIDIA apex.
    """
    local = 1.0
    if adapt:
        w_norm, g_norm = norm(w), norm(g)
        if w_norm > 0 and g_norm > 0:
            local = trust_coefficient * w_norm / (g_norm + weight_decay * w_norm + eps)
            if clip:
                local = min(local / learning_rate, 1.0) if learning_rate > 0 else 1.0
        g = g + weight_decay * w
    step = local * g if momentum_form == "torch" else learning_rate * local * g
    velocity = momentum * velocity + step
    if nesterov:
        step = step + momentum * velocity
    else:
        step = velocity
    return w - (learning_rate * step if momentum_form == "torch" else step), velocity


def lamb(
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    t: int,
    learning_rate: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
    clip: tuple[float, float] | None = None,
    adapt: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (w, m, v) after update number t of LAMB.

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2
        r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
        w <- w - learning_rate phi(||w||) / ||r|| r,    phi(z) = min(max(z, clip[0]), clip[1])

    Without `adapt` it is Adam: w <- w - learning_rate r, where r is computed without the weight decay.

    Args:
        w: weights.
        g: gradient, of the same shape.
        m: first moment of the update before; zeros at first.
        v: second moment of the update before; zeros at first.
        t: number of this update, 1 for the first.
        learning_rate: the global learning rate of this step.
        betas: (beta1, beta2). Default (0.9, 0.999).
        eps: default 1e-6.
        weight_decay: default 0.01.
        bias_correction: divide by 1 - beta^t, as above. Default True.
        clip: (smallest, largest) value of phi. None: phi(z) = z.
        adapt: False: the update without decay or layer-wise learning rate, as for 1-D tensors.

    Source: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, algorithm 2, arXiv:1904.00962.
    """
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * np.square(g)
    c1, c2 = (1 - betas[0] ** t, 1 - betas[1] ** t) if bias_correction else (1, 1)
    r = (m / c1) / (np.sqrt(v / c2) + eps)
    ratio = 1.0
    if adapt:
        r = r + weight_decay * w
        w_norm, r_norm = norm(w), norm(r)
        if w_norm > 0 and r_norm > 0:
            ratio = (np.clip(w_norm, *clip) if clip else w_norm) / r_norm
    return w - learning_rate * ratio * r, m, v


def novograd(
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: np.ndarray | float,
    learning_rate: float,
    *,
    betas: tuple[float, float] = (0.95, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    grad_averaging: bool = False,
    adapt: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
    """Return (w, m, v) after an update of NovoGrad.

        v <- beta2 v + (1 - beta2) ||g||^2,    at first v <- ||g||^2
        m <- beta1 m + (g / (sqrt(v) + eps) + weight_decay w),    w <- w - learning_rate m

    "At first" means as long as v is 0, so a first gradient of zero does not count. Without `adapt` only the
    weight decay is left out, because the division by sqrt(v) is part of the algorithm itself.

    Args:
        w: weights.
        g: gradient, of the same shape.
        m: first moment of the update before; zeros at first.
        v: second moment of the update before, a single number for the tensor; 0 at first.
        learning_rate: the global learning rate of this step.
        betas: (beta1, beta2). Default (0.95, 0.98).
        eps: default 1e-8.
        weight_decay: default 0.
        grad_averaging: multiply the bracket by 1 - beta1. Default False.
        adapt: False: without weight decay, as for 1-D tensors.

    Source: Ginsburg et al., Stochastic Gradient Methods with Layer-wise Adaptive Moments, 2019,
    algorithm 1, arXiv:1905.11286, with v of this step, as all implementations have it.
    """
    square = np.sum(np.square(g))
    v = square if v == 0 else betas[1] * v + (1 - betas[1]) * square
    u = g / (np.sqrt(v) + eps)
    if adapt:
        u = u + weight_decay * w
    m = betas[0] * m + ((1 - betas[0]) * u if grad_averaging else u)
    return w - learning_rate * m, m, v


# --- normalisation ---------------------------------------------------------------------------------


def ghost_batch_norm(
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    running_mean: np.ndarray,
    running_var: np.ndarray,
    ghost_size: int,
    momentum: float,
    eps: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (y, running_mean, running_var) of ghost batch norm in training.

    Each ghost (group of `ghost_size` consecutive examples) is normalised by its own mean and (biased)
    variance. If `ghost_size` does not divide the batch, the last ghost has fewer examples. The running
    statistics are updated with one ghost after the other, with the unbiased variance:

        running <- (1 - momentum) running + momentum statistic(ghost)

    Args:
        x: (batch, ..., channels). Statistics are computed over all axes except the last.
        scale: (channels,).
        shift: (channels,).
        running_mean: (channels,).
        running_var: (channels,).
        ghost_size: examples per ghost.
        momentum: weight of the new value, as in torch (Keras: 1 - momentum).
        eps: added to the variance.

    Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, algorithm 1,
    arXiv:1705.08741. Its weighted sum over ghosts equals this recursion. torch uses the
    unbiased variance; Keras averages the biased variance.
    """
    y = np.empty_like(x)
    for start in range(0, len(x), ghost_size):
        ghost = x[start : start + ghost_size]
        axes = tuple(range(x.ndim - 1))
        n = ghost.size // ghost.shape[-1]
        mean, var = ghost.mean(axes), ghost.var(axes)
        y[start : start + ghost_size] = (ghost - mean) / np.sqrt(var + eps) * scale + shift
        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)
    return y, running_mean, running_var
