"""Checks of lab 6: the two-batch estimator, the fit of S(B), a step of Keskar's sharpness.

Each check begins with a case that is computed by hand, for which the results of known mistakes are known.
"""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, call_unchanged, compare, exercise, numbers, right
from hvdlab.noise_scale import estimate, steps_to_goal

ANY = None  # in a wrong answer: this number can be anything
SWAPPED = (
    "The batch sizes are swapped: |G_big|^2 belongs to B_big. With 128 examples it is the smaller norm, "
    "because it contains less noise."
)


@exercise
def check_two_batch_estimate(two_batch_estimate: Callable) -> None:
    """Demand (G2, S) = (1, 128) from squared norms 5 and 2 at 32 and 128 examples, and three other cases.

    Both must be returned, unclipped, for numbers and for arrays, as `hvdlab.noise_scale.estimate` does.

    Args:
        two_batch_estimate: The learner's `two_batch_estimate(small_norm, big_norm, small, big)`.
    """
    case = "two_batch_estimate(5.0, 2.0, 32, 128)"
    answer = call(two_batch_estimate, 5.0, 2.0, 32, 128)
    if (
        isinstance(answer, float | np.ndarray)
        and np.size(answer) == 1
        and np.isclose(answer, 128).all()
    ):
        raise NotYet(
            f"{case} is one number, 128, the ratio S / G2 of one step. Such a ratio is biased, because G2 "
            "can be close to zero: return both, (G2, S), so that each can be averaged first."
        )
    mistakes = {
        "That is (S, G2): return G2 first.": (128, 1),
        SWAPPED: [(6, -128), (6, ANY), (-6, ANY)],
        "S has the wrong sign: the small batch, with more noise, has the larger norm.": (ANY, -128),
        "These are norms without the square: the arguments are squared norms, use them as they are.":
            estimate(5**0.5, 2**0.5, 32, 128),
        "You square the norms again: the arguments are squared norms already.": estimate(25, 4, 32, 128),
        "G2 lacks the division by B_big - B_small = 96.": (96, ANY),
        "G2 is only the difference of the norms: weight each with its batch size.": (3, ANY),
        "S lacks the division by 1 / B_small - 1 / B_big = 3 / 128.": (ANY, 3),
        "S is divided by a difference of batch sizes: divide by that of 1 / B.": (ANY, 3 / 96),
        "S is multiplied by 1 / B_small - 1 / B_big: divide by it.": (ANY, 9 / 128),
    }  # fmt: skip
    by_hand = "By hand: G2 = (128 x 2 - 32 x 5) / 96 and S = (5 - 2) / (1/32 - 1/128)."
    compare(
        case, tuple(numbers(answer, case, 2, "(G2, S)")), (1, 128), mistakes, by_hand, rtol=1e-5
    )
    for arguments, expected, why in (
        ((1.0, 0.25, 1, 2), (-0.5, 1.5), "An estimate may be negative. Do not clip it or take its absolute "
         "value, or the mean is biased."),
        ((1.0, 2.0, 1, 2), (3, -2), "S may be negative too, where the large batch happens to have the larger "
         "norm. Do not clip it."),
    ):  # fmt: skip
        case = f"two_batch_estimate{arguments}"
        answer = numbers(call(two_batch_estimate, *arguments), case, 2, "(G2, S)")
        compare(case, tuple(answer), expected, otherwise=why, rtol=1e-5)
    small, big = np.array([5.0, 4.0, 1.0]), np.array([2.0, 3.0, 1.5])
    answer = call_unchanged(two_batch_estimate, small, big, 64, 512)
    if not _is_close(answer, np.array(estimate(small, big, 64, 512))):
        raise NotYet(
            "Numbers are right, arrays of three steps are not: with NumPy arrays as norms return two arrays "
            f"of shape (3,). Received: {answer!r}"
        )
    right(
        "norms of 5 and 2 give G2 = 1 and S = 128, so the noise scale is 128. Negative estimates stay, "
        "because only then is their mean over many steps unbiased."
    )


@exercise
def check_fit_steps(fit_steps: Callable) -> None:
    """Demand s_min = 100 and b_crit = 300 from exact data of S = 100 (1 + 300 / B), and a robust fit.

    With two points of eight 20 % off, a fit of relative errors stays close to the truth. A fit that weights
    absolute errors equally depends on the smallest batches only, and finds neither number.

    Args:
        fit_steps: The learner's `fit_steps(batches, steps)`, which returns (s_min, b_crit).
    """
    case = "fit_steps([100, 300, 600], [400, 200, 150])"
    answer = call_unchanged(fit_steps, np.array([100, 300, 600]), np.array([400.0, 200.0, 150.0]))
    s_min, b_crit = numbers(answer, case, 2, "(s_min, b_crit)")
    otherwise = (
        "These points lie exactly on S = 100 (1 + 300 / B). Over x = 1 / B that is 100 + 30000 x."
    )
    if b_crit < 0:
        otherwise = "A negative b_crit comes from a line over B. S is a straight line over 1 / B."
    if not np.isfinite([s_min, b_crit]).all() or abs(s_min) < 1e-6:
        otherwise = (
            "Your line goes through the origin. The intercept is s_min, the steps that remain with an "
            "enormous batch: fit it too."
        )
    mistakes = {
        "That is (b_crit, s_min): return s_min first.": (300, 100),
        "30000 is the slope of S over 1/B, s_min x b_crit: divide it by s_min.": (100, 30_000),
        "These are slope and intercept of S over 1/B. The intercept is s_min, and b_crit is slope / "
        "intercept. np.polyfit returns the slope first.": (30_000, 100),
        "30000 is the slope of S over 1/B, s_min x b_crit; s_min is the intercept.": (30_000, ANY),
        "b_crit is upside down: slope / intercept.": (100, 1 / 300),
        "b_crit is slope / s_min, not slope x s_min.": (100, 30_000 * 100),
    }
    compare(case, (s_min, b_crit), (100, 300), mistakes, otherwise, rtol=1e-3)

    batches = 2.0 ** np.arange(4, 12)
    # Weights of 1/steps give 53.0 and 387, a fit of logarithms 53.4 and 387; equal weights 27 and 884,
    # 1/sqrt(steps) 46 and 478, 1/steps^2 58 and 299, a line through the two ends 60 and 400.
    steps = steps_to_goal(batches, 50, 400) * [1.2, 1, 1, 1, 1, 1, 1, 1.2]
    answer = call(fit_steps, batches, steps)
    s_min, b_crit = numbers(answer, "fit_steps of eight batches", 2, "(s_min, b_crit)")
    if not (50 < s_min < 56 and 370 < b_crit < 410):
        raise NotYet(
            "The fit of exact points is right. Eight batches from 16 to 2048, made with s_min = 50, "
            f"b_crit = 400 and 20 % more steps at both ends, give ({s_min:.4g}, {b_crit:.4g}), expected "
            "(53, 387), where the relative error of each point counts the same. The error of a point grows "
            "with its steps, so give np.polyfit the weights w = 1 / steps: not their root or square, and "
            "leave out no point."
        )
    right(
        "exact points give S_min = 100 and B_crit = 300. With two points that are 20 % off, your fit finds "
        f"({s_min:.0f}, {b_crit:.0f}) instead of (50, 400), because every point counts by its relative error."
    )


@exercise
def check_box_step(box_step: Callable) -> None:
    """Demand one step uphill: half a half-width along the sign of the gradient, then back into the box.

    The box extends eps (|minimum| + 1) to each side of the minimum, not of the weights reached so far.

    Args:
        box_step: The learner's `box_step(weights, gradient, minimum, eps)`.
    """
    minimum, uphill, eps = np.array([0.0, 1.0, -3.0]), np.array([5.0, -0.15, 0.0]), 0.1
    half, sign = np.array([0.1, 0.2, 0.4]), np.sign(uphill)
    low, high = minimum - half, minimum + half
    mistakes = {
        "The weights did not move.": minimum,
        "That is downhill: the loss must grow, so add.": minimum - half / 2 * sign,
        "That is a whole half-width: go half of it.": minimum + half * sign,
        "Your box is eps |w| wide; it is eps (|w| + 1), or weights of zero could not move.":
            minimum + eps * np.abs(minimum) / 2 * sign,
        "Every weight moved alike: the half-width eps (|w| + 1) is larger for larger weights.":
            minimum + eps / 2 * sign,
        "You follow the gradient itself: follow its sign, so that its length plays no part.":
            np.clip(minimum + half / 2 * uphill, low, high),
        "You add the gradient itself: move by half a half-width times its sign.":
            np.clip(minimum + uphill, low, high),
    }  # fmt: skip
    case = "the first step from minimum = [0, 1, -3] with gradient [5, -0.15, 0] and eps = 0.1"
    answer = numbers(call_unchanged(box_step, minimum.copy(), uphill, minimum, eps), case, (3,))
    half_widths = "The half-widths are [0.1, 0.2, 0.4], and a gradient of 0 moves nothing."
    compare(case, answer, np.array([0.05, 0.9, -3]), mistakes, half_widths, rtol=1e-5)

    weights, up = np.array([0.08, 1.1, -2.7]), np.array([1.0, -1.0, 1.0])
    around_weights = weights + eps * (np.abs(weights) + 1) / 2 * up
    mistakes = {
        "That is outside: clip to minimum +- half-width.": weights + half / 2 * up,
        "Your box moves with the weights: centre and width belong to the minimum.": around_weights,
        "Your step is measured from the weights reached: its half-width belongs to the minimum.":
            np.clip(around_weights, low, high),
        "You start from the minimum again: continue from the weights reached.": minimum + half / 2 * up,
    }  # fmt: skip
    case = "a step from [0.08, 1.1, -2.7] with gradient [1, -1, 1] in the same box"
    answer = numbers(call_unchanged(box_step, weights, up, minimum, eps), case, (3,))
    compare(case, answer, np.array([0.1, 1, -2.6]), mistakes, rtol=1e-5)
    weights, lowest = np.array([-0.08, 0.85, -3.3]), np.array([-0.1, 0.8, -3.4])
    case = "a step from [-0.08, 0.85, -3.3] with gradient [-1, -1, -1] in the same box"
    answer = numbers(call(box_step, weights.copy(), -np.ones(3), minimum.copy(), eps), case, (3,))
    compare(case, answer, lowest, otherwise="Clip to the lower edge of the box too.", rtol=1e-5)
    answer = call(box_step, weights[None].copy(), -np.ones((1, 3)), minimum[None].copy(), eps)
    if not _is_close(answer, lowest[None]):
        raise NotYet(
            f"{case}, with weights, gradient and minimum of shape (1, 3), as a layer has them, returns "
            f"{answer!r}, expected [[-0.1, 0.8, -3.4]]."
        )
    right("uphill, along the sign, and never out of the box around the minimum.")


def _is_close(answer: object, expected: np.ndarray) -> bool:
    try:
        return np.shape(answer) == expected.shape and np.allclose(answer, expected)
    except ValueError:  # its parts differ in shape
        return False
