"""Checks of lab 5: the two-batch estimator, the fit of S(B), a step of Keskar's sharpness.

Each begins with a case that is done by hand and knows what the usual mistakes give there.
"""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, call_unchanged, right
from hvdlab.noise_scale import estimate, steps_to_goal


def check_two_batch_estimate(two_batch_estimate: Callable) -> None:
    """(G2, S) from squared norms 5 and 2 at 32 and 128 examples are 1 and 128, by hand.

    Both are returned, unclipped, for numbers and for arrays, as `hvdlab.noise_scale.estimate` does.
    """
    case = "two_batch_estimate(5.0, 2.0, 32, 128)"
    got = call(two_batch_estimate, 5.0, 2.0, 32, 128)
    if isinstance(got, float | np.ndarray) and np.size(got) == 1 and np.isclose(got, 128).all():
        raise NotYet(
            f"{case} is one number, 128: the ratio S / G2 of one step. Such a ratio is biased (G2 "
            "may come out near zero): return both, (G2, S), so that each can be averaged first."
        )
    g2, s = _pair(got, case, "(G2, S)")
    roots, squares = (
        estimate(*norms, 32, 128) for norms in ((5**0.5, 2**0.5), (25, 4))
    )  # of a learner who takes the square root, or squares again
    for wrong, what in (
        ((128, 1), "that is (S, G2): return G2 first."),
        ((6, -128), _SWAPPED),
        ((6, None), _SWAPPED),
        ((-6, None), _SWAPPED),
        ((None, -128), "S has the wrong sign: the small batch, with more noise, has the larger norm."),
        (roots, "these are norms without the square: the arguments are squared norms, use them as they are."),
        (squares, "you square the norms again: the arguments are squared norms already."),
        ((96, None), "G2 lacks the division by B_big - B_small = 96."),
        ((3, None), "G2 is only the difference of the norms: weigh each with its batch size."),
        ((None, 3), "S lacks the division by 1 / B_small - 1 / B_big = 3 / 128."),
        ((None, 3 / 96), "S is divided by a difference of batch sizes: divide by that of 1 / B."),
        ((None, 9 / 128), "S is multiplied by 1 / B_small - 1 / B_big: divide by it."),
    ):  # fmt: skip
        if all(w is None or np.isclose(v, w) for v, w in zip((g2, s), wrong, strict=True)):
            raise NotYet(f"{case} is ({g2:.4g}, {s:.4g}): {what}")
    if not (np.isclose(g2, 1) and np.isclose(s, 128)):
        raise NotYet(
            f"{case} is ({g2:.4g}, {s:.4g}), by hand it is (1, 128): "
            "G2 = (128 x 2 - 32 x 5) / 96 and S = (5 - 2) / (1/32 - 1/128)."
        )

    g2, s = _pair(
        call(two_batch_estimate, 1.0, 0.25, 1, 2),
        "two_batch_estimate(1, 0.25, 1, 2)",
        "",
    )
    if not (np.isclose(g2, -0.5) and np.isclose(s, 1.5)):
        raise NotYet(
            f"two_batch_estimate(1, 0.25, 1, 2) is ({g2:.4g}, {s:.4g}) in place of (-0.5, 1.5): an "
            "estimate may be negative. Do not clip it or take its absolute value, or the mean is biased."
        )
    g2, s = _pair(call(two_batch_estimate, 1.0, 2.0, 1, 2), "two_batch_estimate(1, 2, 1, 2)", "")
    if not (np.isclose(g2, 3) and np.isclose(s, -2)):
        raise NotYet(
            f"two_batch_estimate(1, 2, 1, 2) is ({g2:.4g}, {s:.4g}) in place of (3, -2): S may be negative "
            "too, where the large batch happens to have the larger norm. Do not clip it."
        )
    small, big = np.array([5.0, 4.0, 1.0]), np.array([2.0, 3.0, 1.5])
    got, wanted = (
        call_unchanged(two_batch_estimate, small, big, 64, 512),
        estimate(small, big, 64, 512),
    )
    if not _has_shape(got, (2, 3)) or not np.allclose(got, wanted):
        raise NotYet(
            "Numbers are right, arrays of three steps are not: with NumPy arrays as norms return "
            f"two arrays of shape (3,). Received: {got!r}"
        )
    right("G2 = 1 and S = 128 by hand, negative estimates stay, and arrays agree with hvdlab.")


_SWAPPED = (
    "the batch sizes are swapped: |G_big|^2 belongs to B_big. With 128 examples it is the smaller "
    "norm, for it holds less noise."
)


def check_fit_steps(fit_steps: Callable) -> None:
    """Exact data of S = 100 (1 + 300 / B) give back s_min = 100 and b_crit = 300.

    With two points of eight 20 % off both stay near the truth where errors count in percent: a fit that
    weighs absolute errors alike looks at the smallest batches only, and finds neither.
    """
    batches, steps = np.array([100, 300, 600]), np.array([400.0, 200.0, 150.0])
    case = "fit_steps([100, 300, 600], [400, 200, 150])"
    got = call_unchanged(fit_steps, batches, steps)
    s_min, b_crit = _pair(got, case, "(s_min, b_crit)")
    for wrong, what in (
        ((300, 100), "that is (b_crit, s_min): return s_min first."),
        ((100, 30_000), "30000 is the slope of S over 1/B, s_min x b_crit: divide it by s_min."),
        ((30_000, 100), "these are slope and intercept of S over 1/B. The intercept is s_min, and "
                        "b_crit is slope / intercept. np.polyfit returns the slope first."),
        ((30_000, None), "30000 is the slope of S over 1/B, s_min x b_crit; s_min is the intercept."),
        ((100, 1 / 300), "b_crit is upside down: slope / intercept."),
        ((100, 30_000 * 100), "b_crit is slope / s_min, not slope x s_min."),
    ):  # fmt: skip
        if all(w is None or np.isclose(v, w) for v, w in zip((s_min, b_crit), wrong, strict=True)):
            raise NotYet(f"{case} is ({s_min:.4g}, {b_crit:.4g}): {what}")
    if not np.isfinite([s_min, b_crit]).all() or abs(s_min) < 1e-6:
        raise NotYet(
            f"{case} is ({s_min:.4g}, {b_crit:.4g}): your line goes through the origin. The "
            "intercept is s_min, the steps that remain with an enormous batch: fit it too."
        )
    if b_crit < 0:
        raise NotYet(
            f"{case} is ({s_min:.4g}, {b_crit:.4g}), and b_crit is negative: that is a line over B. "
            "S is a straight line over 1 / B."
        )
    if not (np.isclose(s_min, 100, rtol=1e-3) and np.isclose(b_crit, 300, rtol=1e-3)):
        raise NotYet(
            f"{case} is ({s_min:.4g}, {b_crit:.4g}); these points lie exactly on "
            "S = 100 (1 + 300 / B). Over x = 1 / B that is the line 100 + 30000 x."
        )

    batches = 2.0 ** np.arange(4, 12)
    # Weights of 1/steps give 53.0 and 387, a fit of logarithms 53.4 and 387; all weights alike 27 and 884,
    # 1/sqrt(steps) 46 and 478, 1/steps^2 58 and 299, a line through the two ends 60 and 400.
    errors = [1.2, 1, 1, 1, 1, 1, 1, 1.2]
    steps = steps_to_goal(batches, 50, 400) * errors
    s_min, b_crit = _pair(call(fit_steps, batches, steps), "fit_steps of eight batches", "")
    if not (50 < s_min < 56 and 370 < b_crit < 410):
        raise NotYet(
            "Exact points are fitted. Eight batches from 16 to 2048, made with s_min = 50, b_crit = 400 "
            f"and 20 % more steps at both ends, give ({s_min:.4g}, {b_crit:.4g}), and (53, 387) where all "
            "points count alike in percent. The error of a point grows with its steps, so give "
            "np.polyfit the weights w = 1 / steps: not their root or square, and leave out no point."
        )
    right(
        f"(100, 300) from exact points, ({s_min:.0f}, {b_crit:.0f}) from (50, 400) with two points 20 % off."
    )


def check_box_step(box_step: Callable) -> None:
    """One step uphill: half a half-width along the sign of the gradient, then back into the box.

    The box is eps (|minimum| + 1) to each side of the minimum, not of the weights reached so far.
    """
    minimum, uphill, eps = np.array([0.0, 1.0, -3.0]), np.array([5.0, -0.15, 0.0]), 0.1
    half = np.array([0.1, 0.2, 0.4])
    case = "the first step from minimum = [0, 1, -3] with gradient [5, -0.15, 0] and eps = 0.1"
    got = _array(call_unchanged(box_step, minimum.copy(), uphill, minimum, eps), 3, case)
    for wrong, what in (
        (minimum, "the weights did not move."),
        (minimum - half / 2 * np.sign(uphill), "that is downhill: the loss shall grow, add."),
        (minimum + half * np.sign(uphill), "that is a whole half-width: go half of it."),
        (minimum + eps * np.abs(minimum) / 2 * np.sign(uphill),
         "your box is eps |w| wide; it is eps (|w| + 1), or weights of zero could not move."),
        (minimum + eps / 2 * np.sign(uphill),
         "every weight moved alike: the half-width eps (|w| + 1) is larger for larger weights."),
        (np.clip(minimum + half / 2 * uphill, minimum - half, minimum + half),
         "you follow the gradient itself: follow its sign, so that its length plays no part."),
        (np.clip(minimum + uphill, minimum - half, minimum + half),
         "you add the gradient itself: move by half a half-width times its sign."),
    ):  # fmt: skip
        if np.allclose(got, wrong):
            raise NotYet(f"After {case} you are at {_text(got)}: {what}")
    if not np.allclose(got, [0.05, 0.9, -3]):
        raise NotYet(
            f"After {case} you are at {_text(got)}; by hand it is [0.05, 0.9, -3]: half-widths are "
            "[0.1, 0.2, 0.4], and a gradient of 0 moves nothing."
        )

    there, up = np.array([0.08, 1.1, -2.7]), np.array([1.0, -1.0, 1.0])
    case = "a step from [0.08, 1.1, -2.7] with gradient [1, -1, 1] in the same box"
    got = _array(call_unchanged(box_step, there, up, minimum, eps), 3, case)
    around_here = there + eps * (np.abs(there) + 1) / 2 * up
    for wrong, what in (
        (there + half / 2 * up, "that is outside: clip to minimum +- half-width."),
        (around_here, "your box moves with the weights: centre and width belong to the minimum."),
        (np.clip(around_here, minimum - half, minimum + half),
         "your step is measured from the weights reached: its half-width belongs to the minimum."),
        (minimum + half / 2 * up, "you start anew from the minimum: go on from the weights reached."),
    ):  # fmt: skip
        if np.allclose(got, wrong):
            raise NotYet(f"After {case} you are at {_text(got)}: {what}")
    if not np.allclose(got, [0.1, 1, -2.6]):
        raise NotYet(f"After {case} you are at {_text(got)}, by hand at [0.1, 1, -2.6].")
    case = "a step from [-0.08, 0.85, -3.3] with gradient [-1, -1, -1] in the same box"
    low = np.array([-0.08, 0.85, -3.3])
    got = _array(call(box_step, low.copy(), -np.ones(3), minimum.copy(), eps), 3, case)
    if not np.allclose(got, [-0.1, 0.8, -3.4]):
        raise NotYet(
            f"After {case} you are at {_text(got)}, by hand at [-0.1, 0.8, -3.4]: the box has a "
            "lower wall too."
        )
    case = "the same with weights, gradient and minimum of shape (1, 3), as a layer has them"
    got = call(box_step, low[None].copy(), -np.ones((1, 3)), minimum[None].copy(), eps)
    if not _has_shape(got, (1, 3)) or not np.allclose(got, [[-0.1, 0.8, -3.4]]):
        raise NotYet(f"After {case} you return {got!r}, by hand it is [[-0.1, 0.8, -3.4]].")
    right("uphill, along the sign, and never out of the box around the minimum.")


def _has_shape(got, shape) -> bool:
    try:
        return np.shape(got) == shape
    except ValueError:  # its parts differ in shape
        return False


def _pair(got, case, names):
    """Two finite-or-not numbers, or a sentence on what came in their place."""
    if got is None:
        raise NotYet(f"{case} returned None: is `return` missing?")
    try:
        first, second = (float(np.squeeze(value)) for value in got)
    except (TypeError, ValueError):
        raise NotYet(f"{case} shall return two numbers {names}. Received: {got!r}") from None
    return first, second


def _array(got, n, case):
    if got is None:
        raise NotYet("box_step returned None: is `return` missing?")
    try:
        got = np.asarray(got, float)
    except (TypeError, ValueError):
        got = np.empty(0)
    if got.shape != (n,):
        raise NotYet(f"After {case} an array of shape ({n},) is due, yours has {got.shape}.")
    return got


def _text(values) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values) + "]"
