"""Every formula of this package, stated once in NumPy: what the torch and Keras classes must equal.

One function is one update of *one* parameter tensor. Nothing is changed in place; arrays keep their
dtype, so float64 in gives float64 out. The norm ||.|| is the L2 norm of the whole tensor.

    w, g           weights and gradient, arrays of one shape
    learning_rate  the global rate of this step
    adapt          False: the plain update without decay or layer-wise rate, as for 1-D tensors

Ratios of norms are 1 where a norm is 0, so that a tensor of zeros can leave zero. NaN and infinite
gradients end in NaN weights, as in the optimizers of both frameworks.
"""

import numpy as np


def norm(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(np.square(x)))


# --- optimizers ------------------------------------------------------------------------------------


def lars(
    w,
    g,
    velocity,
    learning_rate,
    *,
    momentum=0.9,
    weight_decay=0.0,
    trust_coefficient=0.001,
    eps=0.0,
    clip=False,
    nesterov=False,
    momentum_form="torch",
    adapt=True,
):
    """LARS; with `clip=True` LARC. Return (w, velocity).

        local = trust_coefficient ||w|| / (||g|| + weight_decay ||w|| + eps)     LARC: at most learning_rate
        "torch":  v <- momentum v + local u,                 w <- w - learning_rate v
        "paper":  v <- momentum v + learning_rate local u,   w <- w - v
        with u = g + weight_decay w

    LARC divides by the rate first, min(local / learning_rate, 1), so that the step is min(local,
    learning_rate) u. The two forms differ only while the rate changes: "torch" scales old
    gradients with the new rate.

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
    w,
    g,
    m,
    v,
    t,
    learning_rate,
    *,
    betas=(0.9, 0.999),
    eps=1e-6,
    weight_decay=0.01,
    bias_correction=True,
    clip=None,
    adapt=True,
):
    """LAMB at step t = 1, 2, ... Return (w, m, v).

        m <- beta1 m + (1 - beta1) g,    v <- beta2 v + (1 - beta2) g^2
        r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
        w <- w - learning_rate phi(||w||) / ||r|| r,    phi(z) = min(max(z, clip[0]), clip[1])

    Without adapt: Adam, w <- w - learning_rate r with r without its decay.

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
    w,
    g,
    m,
    v,
    learning_rate,
    *,
    betas=(0.95, 0.98),
    eps=1e-8,
    weight_decay=0.0,
    grad_averaging=False,
    adapt=True,
):
    """NovoGrad; v is one number a tensor. Return (w, m, v).

        v <- beta2 v + (1 - beta2) ||g||^2,    at first v <- ||g||^2
        m <- beta1 m + (g / (sqrt(v) + eps) + weight_decay w),    w <- w - learning_rate m

    "At first" means while v is 0: a first gradient of zero does not count. `grad_averaging`
    multiplies the bracket by 1 - beta1. The normalisation is the method itself: without `adapt`
    only the decay is left out.

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


def ghost_batch_norm(x, scale, shift, running_mean, running_var, ghost_size, momentum, eps):
    """Ghost batch norm in training. Return (y, running_mean, running_var).

    Each ghost of `ghost_size` consecutive examples is normalised by its own mean and (biased)
    variance; the last ghost holds the remainder, fewer examples, if there is one. The running
    statistics take the ghosts one after the other, with the unbiased variance:

        running <- (1 - momentum) running + momentum statistic(ghost)

    Args:
        x: (batch, ..., channels): statistics are taken over all axes but the last.
        scale, shift, running_mean, running_var: (channels,).
        momentum: weight of the new value, as in torch (Keras: 1 - momentum).

    Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, algorithm 1,
    arXiv:1705.08741. Its weighted sum over ghosts is this recursion written out. The unbiased
    variance is torch's; Keras averages the biased one.
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
