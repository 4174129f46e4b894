"""Checks of lab 7: ghost batch norm, the updates of a growing batch, and LARS.

The cases are small enough to compute by hand; the last ones compare with `hvdlab.reference` and
`hvdlab.schedules`. Each known mistake stands here as the wrong formula that a learner would write: an
answer that equals its result gets the sentence about this mistake.
"""

from collections.abc import Callable
from numbers import Integral
from types import SimpleNamespace

import numpy as np

from hvdlab import reference
from hvdlab.exercises import NotYet, call_unchanged, compare, exercise, numbers, right
from hvdlab.schedules import batch_growth, updates

# --- ghost batch norm ------------------------------------------------------------------------------


@exercise
def check_ghost_batch_norm(ghost_batch_norm: Callable) -> None:
    """Demand that each ghost of consecutive rows is normalised by itself, also a short last one.

    Mean and biased variance are those of the rows of the ghost, for each column; eps is under the root.

    Args:
        ghost_batch_norm: The learner's `ghost_batch_norm(x, ghost_size, eps)`.
    """
    for x, size, eps in (
        ([[0], [2], [4], [8]], 2, 0.0),
        ([[0, 10], [2, 30]], 2, 0.0),
        ([[0], [4]], 2, 12.0),
        ([[0], [3], [6], [6], [10]], 3, 0.0),
        ([[1], [5]], 1, 0.001),
    ):
        x = np.array(x, float)
        case = f"ghost_batch_norm of {x.tolist()} in ghosts of {size} with eps = {eps:g}"
        answer = numbers(call_unchanged(ghost_batch_norm, x, size, eps), case, None)
        if len(x) == 5 and len(np.atleast_1d(answer)) == 3:
            raise NotYet(f"{case} has 3 rows, expected 5: your last ghost, of 2 rows, is dropped.")
        with np.errstate(all="ignore"):
            mistakes = {text: f(x, size, eps) for text, f in WRONG_GHOSTS.items()}
            mistakes |= {text: _ghosts(x, size, eps, f) for text, f in WRONG_NORMS.items()}
        compare(case, numbers(answer, case, x.shape), _ghosts(x, size, eps, _normal), mistakes)
    x, one, zero = np.random.default_rng(6).normal(3, 2, (22, 4)), np.ones(4), np.zeros(4)
    for size in (8, 22, 100):
        case = f"ghost_batch_norm of 22 x 4 random numbers in ghosts of {size}"
        expected, *_ = reference.ghost_batch_norm(x, one, zero, zero, one, size, 0.1, 1e-5)
        answer = numbers(call_unchanged(ghost_batch_norm, x, size, 1e-5), case, x.shape)
        compare(
            case, answer, expected, {text: f(x, size, 1e-5) for text, f in WRONG_GHOSTS.items()}
        )
    right(
        "each ghost has its own mean and variance, also the short last one. A ghost of one example becomes "
        "0, and a single ghost of all examples is batch norm."
    )


def _normal(
    x: np.ndarray, eps: float, axis: int | tuple[int, ...] = 0, ddof: int = 0
) -> np.ndarray:
    variance = np.square(x - x.mean(axis, keepdims=True)).mean(axis, keepdims=True)
    variance = variance * len(x) / (len(x) - ddof)
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(variance + eps)


def _ghosts(
    x: np.ndarray, size: int, eps: float, norm: Callable, last: Callable | None = None
) -> np.ndarray:
    """Return x with `norm` applied to each ghost, but `last` to one with fewer than `size` rows."""
    ghosts = [x[start : start + size] for start in range(0, len(x), size)]
    norms = [last if last and len(ghost) < size else norm for ghost in ghosts]
    return np.concatenate([norm(ghost, eps) for norm, ghost in zip(norms, ghosts, strict=True)])


def _every_second(x: np.ndarray, size: int, eps: float) -> np.ndarray:
    y, ghosts = np.empty_like(x), -(-len(x) // size)
    for first in range(ghosts):
        y[first::ghosts] = _normal(x[first::ghosts], eps)
    return y


def _equal_parts(x: np.ndarray, size: int, eps: float) -> np.ndarray:
    return np.concatenate([_normal(part, eps) for part in np.array_split(x, -(-len(x) // size))])


def _joined(x: np.ndarray, size: int, eps: float) -> np.ndarray:
    edges = range(size, len(x) // size * size, size)
    return np.concatenate([_normal(part, eps) for part in np.split(x, edges)])


WRONG_NORMS = {
    "The variance is the unbiased one, over n - 1: batch norm divides by n (ddof=0).":
        lambda x, eps: _normal(x, eps, ddof=1),
    "Features are mixed: each column has its own mean and variance (axis=0).":
        lambda x, eps: _normal(x, eps, axis=(0, 1)),
    "Each example is normalised over its features, which is layer norm: go down the rows, axis=0.":
        lambda x, eps: _normal(x, eps, axis=1),
    "You divide by the variance: divide by its root.":
        lambda x, eps: (x - x.mean(0)) / (x.var(0) + eps),
    "The mean is not subtracted.": lambda x, eps: x / np.sqrt(x.var(0) + eps),
    "eps is not used.": lambda x, eps: _normal(x, 0),
    "eps is added to the standard deviation: add it to the variance, under the root.":
        lambda x, eps: (x - x.mean(0)) / (x.std(0) + eps),
}  # fmt: skip
WRONG_GHOSTS = {
    "Your ghosts are nearly equal parts: each has ghost_size rows, and the last has the remainder.":
        _equal_parts,
    "The remainder went into the ghost before it: it is a smaller ghost of its own.": _joined,
    "These are statistics of the whole batch: take those of the rows of one ghost.":
        lambda x, size, eps: _normal(x, eps),
    "Your ghosts are strided, x[0::2] and x[1::2]: a ghost is a run of consecutive rows.":
        _every_second,
    "The last ghost, the remainder, is left as it came: normalise it like the others.":
        lambda x, size, eps: _ghosts(x, size, eps, _normal, last=lambda x, eps: x),
    "The last ghost, the remainder, becomes zeros: normalise it like the others.":
        lambda x, size, eps: _ghosts(x, size, eps, _normal, last=lambda x, eps: 0 * x),
}  # fmt: skip


# --- growing the batch -----------------------------------------------------------------------------


@exercise
def check_updates_with_growth(updates_with_growth: Callable) -> None:
    """Demand all updates of a run whose batch is `factor` times larger from each milestone on.

    The last batch of an epoch may be short, and counts.

    Args:
        updates_with_growth: The learner's `updates_with_growth(n, batch, milestones, factor, epochs)`.
    """
    plan = batch_growth(90, [30, 60, 80], 5, 256, 256 * 5**3, learning_rate=1.0)
    published = updates(60_000, [batch for batch, _ in plan])
    by_hand = {
        60: "The batch does not grow: from each milestone on it is 4 times larger.",
        22: "Short batches are dropped: 100 examples in batches of 40 are 3 updates. Round up.",
        28: "An epoch has one update too many where the batch divides the examples: 100 examples in "
        "batches of 10 are 10 updates, not 100 // 10 + 1.",
        35: "Your batch grows an epoch late: milestone 2 is the first epoch with the new batch, and "
        "epochs count from 0.",
        17: "Your batch grows an epoch early: epochs count from 0, milestone 2 is the third epoch.",
        32: "Your batch grows once only: each milestone multiplies it, in the end by 16.",
        29: "Your batch is 80 in the end: two milestones multiply it by 4 * 4, not 4 + 4.",
        46: "The factor is added to the batch: multiply.",
        1: "These are the updates of the last epoch only: add up all epochs.",
    }
    short = {
        30: "The last batch of an epoch is dropped: 10 batches of 10 cover 100 of 105. Round up.",
        32: "You round once for the whole run: every epoch ends with a short batch.",
    }
    long = {
        7166: "Your batch grows again in every epoch after a milestone: it grows once at each.",
    }
    for arguments, expected, how, wrong in (
        ((100, 10, [2, 3], 4, 6), 26, "its epochs have 10, 10, 3, 1, 1 and 1 updates", by_hand),
        ((105, 10, [], 5, 3), 33, "11 per epoch", short),
        ((60_000, 256, [30, 60, 80], 5, 90), published, "as in hvdlab.schedules.updates", long),
    ):
        case = f"updates_with_growth{arguments}"
        answer = call_unchanged(updates_with_growth, *arguments)
        if isinstance(answer, np.ndarray) and answer.ndim == 0:
            answer = answer.item()
        is_whole = isinstance(answer, float | np.floating) and float(answer).is_integer()
        if not (isinstance(answer, Integral) or is_whole):
            raise NotYet(f"{case} must return one whole number. Received: {answer!r}")
        mistakes = {sentence: updates for updates, sentence in wrong.items()}
        compare(f"{case} ({how})", answer, expected, mistakes)
    right(
        f"26 updates by hand, and {expected:,} for 90 epochs of 60,000 images, where a constant batch of 256 "
        f"would need {updates(60_000, [256] * 90):,}."
    )


# --- LARS ------------------------------------------------------------------------------------------


@exercise
def check_lars_update(lars_update: Callable) -> None:
    """Demand one update of two weights by hand, without and with a velocity; norms of 0; then many.

    The learning rate is outside of the velocity, as in torch and in `hvdlab.reference.lars`.

    Args:
        lars_update: The learner's `lars_update(w, gradient, velocity, learning_rate, momentum,
            weight_decay, trust_coefficient)`, which returns (w, velocity).
    """
    w, g, zero = np.array([3.0, 4]), np.array([8.0, -6]), np.zeros(2)
    how = "where ||w|| = 5, ||g|| = 10 and the local rate is 0.25 * 5 / (10 + 0.5 * 5) = 0.1"
    for velocity in (zero, np.array([1.0, -2])):
        _lars(lars_update, how, w, g, velocity)
    guard = "where a norm is 0, so that the local rate is 1"
    for weights, gradient in ((zero, g), (zero, zero), (w, zero)):
        _lars(lars_update, guard, weights, gradient, zero)
    _lars(lars_update, guard, w, zero, zero, decay=0.0)
    many = np.random.default_rng(6).normal(size=(3, 5, 7))
    for decay in (0.0, 0.01):
        _lars(lars_update, "5 x 7 random numbers", *many, rate=0.3, decay=decay, trust=0.001)
    right(
        "two weights by hand, 5 x 7 weights as in hvdlab.reference, and norms of 0. There the rate is 1, "
        "so that weights of 0 can change."
    )


def _lars(
    lars_update: Callable,
    how: str,
    w: np.ndarray,
    g: np.ndarray,
    v: np.ndarray,
    rate: float = 2.0,
    momentum: float = 0.9,
    decay: float = 0.5,
    trust: float = 0.25,
) -> None:
    case = f"learning_rate = {rate:g}, momentum = {momentum:g}, weight_decay = {decay:g}, "
    case += f"trust_coefficient = {trust:g}, {how}"
    if w.size == 2:
        case = f"w = {w.tolist()}, gradient = {g.tolist()}, velocity = {v.tolist()}, {case}"
    case = f"(w, velocity) after one update with {case},"
    with np.errstate(all="ignore"):
        answer = call_unchanged(lars_update, w, g, v, rate, momentum, decay, trust)
    pair = isinstance(answer, tuple | list) or np.shape(answer) == (2, *w.shape)
    if not (pair and len(answer) == 2):
        raise NotYet(f"lars_update must return (w, velocity). Received: {answer!r}")
    answer = np.array([numbers(part, case, w.shape) for part in answer])
    expected = reference.lars(
        w, g, v, rate, momentum=momentum, weight_decay=decay, trust_coefficient=trust
    )
    if np.isnan(answer).any():
        raise NotYet(f"{case} is nan, from 0 / 0. Use a local rate of 1 where a norm is 0.")
    if not w.any() and g.any() and not answer.any():
        raise NotYet(f"{case} is zero: weights of zero never leave zero, as their local rate is 0.")
    s = SimpleNamespace(w=w, g=g, u=g + decay * w, v=v, rate=rate, momentum=momentum, decay=decay)
    s.w_norm, s.g_norm, s.trust = reference.norm(w), reference.norm(g), trust
    with np.errstate(all="ignore"):
        s.local = trust * s.w_norm / (s.g_norm + decay * s.w_norm)
        s.new = momentum * v + s.local * s.u
        mistakes = {text: _step(s, momentum * v + f(s) * s.u) for text, f in WRONG_RATES.items()}
        mistakes |= {text: f(s) for text, f in WRONG_STEPS.items()}
    mistakes = {text: np.array(wrong) for text, wrong in mistakes.items()}
    compare(case, answer, np.array(expected), mistakes)


def _step(
    s: SimpleNamespace, velocity: np.ndarray, rate: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    return s.w - (s.rate if rate is None else rate) * velocity, velocity


WRONG_RATES = {
    "The guard is missing: without it the local rate is not 1 here.": lambda s: s.local,
    "Your denominator is the joint norm ||g + decay w||: LARS adds two norms, ||g|| + decay ||w||.":
        lambda s: s.trust * s.w_norm / reference.norm(s.u),
    "The decay is missing in the denominator: ||g|| + decay ||w||.":
        lambda s: s.trust * s.w_norm / s.g_norm,
    "The denominator has ||w|| without the decay: ||g|| + decay ||w||.":
        lambda s: s.trust * s.w_norm / (s.g_norm + s.w_norm),
    "The trust coefficient is left out.": lambda s: s.local / s.trust,
    "The ratio is upside down: ||w|| is above the line.":
        lambda s: s.trust * (s.g_norm + s.decay * s.w_norm) / s.w_norm,
    "Your norms are squared: take the root of the sum of squares.":
        lambda s: s.trust * s.w_norm**2 / (s.g_norm**2 + s.decay * s.w_norm**2),
    "The local rate is not used: this is plain SGD with momentum.": lambda s: 1.0,
}  # fmt: skip
WRONG_STEPS = {
    "The learning rate is left out.": lambda s: _step(s, s.new, 1),
    "The learning rate is inside of the velocity, as in the paper: put it outside, w - rate * velocity.":
        lambda s: _step(s, s.momentum * s.v + s.rate * s.local * s.u, 1),
    "The decay is outside: it belongs into u = g + decay w, which the local rate multiplies.":
        lambda s: _step(s, s.momentum * s.v + s.local * s.g + s.decay * s.w),
    "The decay is outside of the step: it belongs into u = g + decay w.":
        lambda s: (_step(s, s.v * s.momentum + s.local * s.g)[0] - s.rate * s.decay * s.w,
                   s.v * s.momentum + s.local * s.g),
    "The decay is left out of the step: u = g + decay w.":
        lambda s: _step(s, s.momentum * s.v + s.local * s.g),
    "The velocity takes 1 - momentum of the step: here it takes all of it.":
        lambda s: _step(s, s.momentum * s.v + (1 - s.momentum) * s.local * s.u),
    "The old velocity is not used: momentum * velocity + local * u.":
        lambda s: _step(s, s.local * s.u),
    "The momentum is left out: momentum * velocity + local * u.":
        lambda s: _step(s, s.v + s.local * s.u),
    "The step is added: go downhill, w - learning_rate * velocity.":
        lambda s: _step(s, s.new, -s.rate),
}  # fmt: skip
