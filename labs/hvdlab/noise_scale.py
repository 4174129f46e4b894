"""Measure the gradient noise scale while training. It predicts up to which size larger batches help.

A gradient averaged over B examples is the true gradient G plus noise with covariance Sigma / B. The noise
scale compares the two. It is a number of examples:

    B_simple = tr(Sigma) / |G|^2

The law of steps (`steps_to_goal`) is derived for B_noise = tr(H Sigma) / (G^T H G), where H is the Hessian of
the loss. B_simple equals it only if H is a multiple of the identity matrix. It needs no Hessian, and
predicts the same order of magnitude.

If the batch is much smaller, doubling it nearly halves the number of steps. If the batch is much larger,
doubling it nearly doubles the number of examples that training reads, with almost no benefit.
E|gradient|^2 = |G|^2 + tr(Sigma) / B is a straight line in 1 / B, so the squared norms at two batch sizes
give both unknowns. Data-parallel training has both norms at almost no cost: the gradient of b examples per
rank before the all-reduce, and of b x size examples after it.

    scale = NoiseScale(b, b * hvd.size())
    # every step: `local` and `averaged` are this rank's gradient before and after the all-reduce
    scale.update(float(hvd.allreduce(squared_norm(local))), float(squared_norm(averaged)))

Average the norms of all ranks, as above (only one number is sent). Use gradients that were not clipped,
scaled or made noisy. NOTE: Horovod's torch optimizer averages *in place during* `backward()`, so
afterwards `p.grad` is no longer local. Compute the local norm earlier, in hooks, which run first:

    norms = []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: norms.append(squared_norm([p])))
    loss.backward()          # now sum(norms) is the squared norm of the local gradient
    optimizer.synchronize()  # now squared_norm(model.parameters()) is that of the averaged gradient

Source: McCandlish, Kaplan, Amodei, OpenAI Dota Team, An Empirical Model of Large-Batch Training,
2018, arXiv:1812.06162: sections 2.2 and 2.3, appendix A.1.
"""

import math

import numpy as np

Numbers = float | np.ndarray  # a number or an array of numbers


def estimate(
    small_norm2: Numbers, big_norm2: Numbers, small_batch: int, big_batch: int
) -> tuple[Numbers, Numbers]:
    """Return unbiased estimates (G2, S) of |G|^2 and tr(Sigma), of the shape of the norms.

        G2 = (B_big |G_big|^2 - B_small |G_small|^2) / (B_big - B_small)
        S  = (|G_small|^2 - |G_big|^2) / (1 / B_small - 1 / B_big)

    Each estimate is noisy and may be negative. So average many of both before dividing. The ratio of the
    estimates of one step is biased, and so is the mean of such ratios.

    Args:
        small_norm2: squared norm |G_small|^2 of the gradient of the small batch, at least 0.
        big_norm2: squared norm |G_big|^2 of the gradient of the big batch, at least 0.
        small_batch: number of examples in the small batch, at least 1.
        big_batch: number of examples in the big batch, more than in the small batch.

    Returns:
        (G2, S).

    Raises:
        ValueError: a batch size or a norm is out of range, or a norm is not finite.
    """
    _check_batches(small_batch, big_batch)
    for name, norm2 in (("small_norm2", small_norm2), ("big_norm2", big_norm2)):
        if not np.all(np.isfinite(norm2) & (np.asarray(norm2) >= 0)):
            raise ValueError(f"{name} must be finite and at least 0. Received: {name}={norm2!r}")
    G2 = (big_batch * big_norm2 - small_batch * small_norm2) / (big_batch - small_batch)
    S = (small_norm2 - big_norm2) / (1 / small_batch - 1 / big_batch)
    return G2, S


class NoiseScale:
    """Estimate the noise scale over about the last 1 / (1 - decay) steps.

    Numerator and denominator are smoothed separately by exponential moving averages. Both averages are
    divided by 1 - decay^steps, so that they are means from the first step on.

    Attributes:
        steps: number of steps so far.

    Args:
        small_batch: as in `estimate`: the examples per rank, b.
        big_batch: as in `estimate`: the examples of all N ranks, b x N.
        decay: from 0 (no smoothing) to below 1. Default 0.99.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> scale = NoiseScale(32, 128)
        >>> scale.update(small_norm2=5.0, big_norm2=2.0)
        128.0
    """

    def __init__(self, small_batch: int, big_batch: int, decay: float = 0.99) -> None:
        _check_batches(small_batch, big_batch)
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be a number from 0 to below 1. Received: decay={decay!r}")
        self.small_batch, self.big_batch, self.decay = small_batch, big_batch, decay
        self.steps = 0
        self._averages = np.zeros(2)  # of G2 and S, before bias correction

    def update(self, small_norm2: float, big_norm2: float) -> float:
        """Add the squared norms of one step and return the new `noise_scale`.

        Raises:
            ValueError: a norm is negative, NaN or infinite. Leave out steps whose gradients overflowed.
        """
        estimates = estimate(small_norm2, big_norm2, self.small_batch, self.big_batch)
        self._averages = self.decay * self._averages + (1 - self.decay) * np.array(estimates)
        self.steps += 1
        return self.noise_scale

    @property
    def squared_gradient(self) -> float:
        """The smoothed estimate of |G|^2; NaN before the first step."""
        return self._corrected(0)

    @property
    def trace(self) -> float:
        """The smoothed estimate of tr(Sigma); NaN before the first step."""
        return self._corrected(1)

    @property
    def noise_scale(self) -> float:
        """B_simple in examples.

        It is infinite while the estimate of |G|^2 is not positive. In that case smooth over more steps.
        """
        G2, S = self.squared_gradient, self.trace
        return math.inf if G2 <= 0 else S / G2

    def _corrected(self, i: int) -> float:
        if self.steps == 0:
            return math.nan
        return float(self._averages[i] / (1 - self.decay**self.steps))


def steps_to_goal(batch: Numbers, s_min: float, b_crit: float) -> Numbers:
    """Return the predicted number of optimizer steps until a given loss, for batches of `batch` examples.

        S(B) = s_min (1 + b_crit / B),    examples E = B S(B) = s_min (B + b_crit)

    s_min is the number of steps that an enormous batch needs. At B = b_crit training needs twice as many
    steps as s_min, and twice as many examples as a tiny batch. B_simple predicts b_crit to an order of
    magnitude.

    Args:
        batch: examples per step, a number or an array, above 0.
        s_min: number of steps, above 0.
        b_crit: number of examples, at least 0.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_positive("batch", batch)
    _check_positive("s_min", s_min)
    _check_not_negative("b_crit", b_crit)
    return s_min * (1 + b_crit / np.asarray(batch))


def loss_weight_std(large_batch: int, small_batch: int) -> float:
    """Return the std of loss weights z ~ N(1, std^2) that give a large batch the noise of a small one.

        std^2 = large_batch / small_batch - 1

    It is for `LossWeights` of `hvdlab.torch.noise` and `hvdlab.keras.noise`. It is exact if the mean
    gradient G is 0. Otherwise the covariance is larger by (1/small_batch - 1/large_batch) G G^T.

    Args:
        large_batch: examples of all ranks together.
        small_batch: examples of all ranks together, from 1 to `large_batch`.

    Raises:
        ValueError: small_batch is below 1 or above large_batch.

    Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, section 4,
    arXiv:1705.08741.
    """
    if not 1 <= small_batch <= large_batch:
        raise ValueError(
            "small_batch must be at least 1 and at most large_batch. "
            f"Received: small_batch={small_batch!r}, large_batch={large_batch!r}"
        )
    return math.sqrt(large_batch / small_batch - 1)


def _check_batches(small: int, big: int) -> None:
    if not 1 <= small < big:
        raise ValueError(
            "small_batch must be at least 1 and big_batch larger than it. "
            f"Received: small_batch={small!r}, big_batch={big!r}"
        )


def _check_positive(name: str, value: Numbers) -> None:
    if not np.all(np.asarray(value) > 0):
        raise ValueError(f"{name} must be above 0. Received: {name}={value!r}")


def _check_not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must be at least 0. Received: {name}={value!r}")
