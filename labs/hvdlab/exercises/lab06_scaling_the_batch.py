"""Exercises of lab 6: the two-batch estimator, the fit of S(B), a step of Keskar's sharpness."""

import numpy as np

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.noise_scale import steps_to_goal


def two_batch_estimate(small_norm2, big_norm2, small_batch, big_batch):
    G2 = (big_batch * big_norm2 - small_batch * small_norm2) / (big_batch - small_batch)
    S = (small_norm2 - big_norm2) / (1 / small_batch - 1 / big_batch)
    return G2, S


# fmt: off
check_two_batch_estimate = FunctionExercise(
    two_batch_estimate,
    [
        Case((5.0, 2.0, 32, 128), "By hand: G2 = (128 x 2 - 32 x 5) / 96 and S = (5 - 2) / (1/32 - 1/128).",
             expected=(1, 128)),
        Case((1.0, 0.25, 1, 2), "By hand: G2 = (2 x 0.25 - 1) / 1 and S = (1 - 0.25) / (1 - 1/2).",
             expected=(-0.5, 1.5)),
        Case((1.0, 2.0, 1, 2), "S is negative where the large batch happens to have the larger norm.",
             expected=(3, -2)),
        Case((np.array([5.0, 4.0, 1.0]), np.array([2.0, 3.0, 1.5]), 64, 512),
             "With arrays of three steps as norms return two arrays of shape (3,)."),
    ],
    {
        "That is the ratio S / G2 of one step. Such a ratio is biased, because G2 can be close to zero: "
        "return both, (G2, S), so that each can be averaged first.": ("return G2, S", "return S / G2"),
        "That is (S, G2): return G2 first.": ("return G2, S", "return S, G2"),
        "The batch sizes are swapped: |G_big|^2 belongs to B_big. With 128 examples it is the smaller norm, "
        "because it contains less noise.":
            [lambda small, big, m, n: two_batch_estimate(small, big, n, m),
             ("big_batch * big_norm2 - small_batch * small_norm2",
              "small_batch * big_norm2 - big_batch * small_norm2"),
             ("big_batch * big_norm2 - small_batch * small_norm2",
              "big_batch * small_norm2 - small_batch * big_norm2")],
        "S has the wrong sign: the small batch, with more noise, has the larger norm.":
            ("(small_norm2 - big_norm2)", "(big_norm2 - small_norm2)"),
        "These are norms without the square: the arguments are squared norms, use them as they are.":
            lambda small, big, m, n: two_batch_estimate(small**0.5, big**0.5, m, n),
        "You square the norms again: the arguments are squared norms already.":
            lambda small, big, m, n: two_batch_estimate(small**2, big**2, m, n),
        "G2 lacks the division by B_big - B_small = 96.": (" / (big_batch - small_batch)", ""),
        "G2 is only the difference of the norms: weight each with its batch size.":
            [("(big_batch * big_norm2 - small_batch * small_norm2) / (big_batch - small_batch)", difference)
             for difference in ("small_norm2 - big_norm2", "big_norm2 - small_norm2")],
        "S lacks the division by 1 / B_small - 1 / B_big = 3 / 128.":
            (" / (1 / small_batch - 1 / big_batch)", ""),
        "S is divided by a difference of batch sizes: divide by that of 1 / B.":
            ("(1 / small_batch - 1 / big_batch)", "(big_batch - small_batch)"),
        "S is multiplied by 1 / B_small - 1 / B_big: divide by it.": ("/ (1 / small", "* (1 / small"),
        "An estimate may be negative. Do not clip it or take its absolute value, or the mean is biased.":
            [("return G2, S", f"return {result}") for result in (
                "np.maximum(G2, 0), S", "G2, np.maximum(S, 0)", "np.maximum(G2, 0), np.maximum(S, 0)",
                "abs(G2), S", "G2, abs(S)", "abs(G2), abs(S)")],
        "With arrays as norms return two arrays of their shape: the mean over the steps comes later.":
            ("return G2, S", "return np.mean(G2), np.mean(S)"),
    },
    passed="norms of 5 and 2 give G2 = 1 and S = 128, so the noise scale is 128. Negative estimates stay, "
    "because only then is their mean over many steps unbiased.",
    shape=None, meaning="(G2, S), each of the shape of the norms", rtol=1e-5,
)
# fmt: on


def fit_steps(batches, steps):
    slope, s_min = np.polyfit(1 / np.asarray(batches), steps, 1, w=1 / np.asarray(steps))
    return s_min, slope / s_min


EIGHT_BATCHES = 2.0 ** np.arange(4, 12)

# Other weights in the second case: 27 and 884 without, 46 and 478 with 1 / sqrt(steps), 58 and 299 with
# 1 / steps^2. A fit of logarithms gives 53.4 and 387.
# fmt: off
check_fit_steps = FunctionExercise(
    fit_steps,
    [
        Case((np.array([100, 300, 600]), np.array([400.0, 200.0, 150.0])), expected=(100, 300),
             reason="These points lie exactly on S = 100 (1 + 300 / B). Over x = 1 / B that is "
             "100 + 30000 x. The intercept is s_min, and the slope is s_min x b_crit."),
        Case((EIGHT_BATCHES, steps_to_goal(EIGHT_BATCHES, 50, 400) * [1.2, 1, 1, 1, 1, 1, 1, 1.2]),
             call="fit_steps of eight batches from 16 to 2048", expected=(53.0, 387),
             reason="These points were made with s_min = 50, b_crit = 400 and 20 % more steps at both "
             "ends. The relative error of each point must count the same: give np.polyfit the weights "
             "w = 1 / steps."),
    ],
    {
        "That is (b_crit, s_min): return s_min first.": ("s_min, slope / s_min", "slope / s_min, s_min"),
        "30000 is the slope of S over 1/B, s_min x b_crit: divide it by s_min.": ("slope / s_min", "slope"),
        "These are slope and intercept of S over 1/B. The intercept is s_min, and b_crit is slope / "
        "intercept. np.polyfit returns the slope first.": ("s_min, slope / s_min", "slope, s_min"),
        "30000 is the slope of S over 1/B, s_min x b_crit; s_min is the intercept.":
            [("return s_min", "return slope"), ("slope, s_min =", "s_min, slope =")],
        "b_crit is upside down: slope / intercept.": ("slope / s_min", "s_min / slope"),
        "b_crit is slope / s_min, not slope x s_min.": ("slope / s_min", "slope * s_min"),
        "Your line goes through the origin. The intercept is s_min, the steps that remain with an enormous "
        "batch: fit it too.": [lambda b, s: (0.0, np.mean(s * b)), lambda b, s: (0.0, np.inf)],
        "Yours is a line over B. S is a straight line over 1 / B.":
            [("1 / np.asarray(batches)", "batches"),
             ("1 / np.asarray(batches)", "batches", ", w=1 / np.asarray(steps)", "")],
        "Without weights the smallest batches, which have the most steps, decide alone. Give np.polyfit the "
        "weights w = 1 / steps.": (", w=1 / np.asarray(steps)", ""),
        "Give np.polyfit the weights w = 1 / steps, not their root or square.":
            [("np.asarray(steps)", f"np.asarray(steps) ** {power}") for power in (0.5, 2)],
        "Your line goes through two of the points. Leave out no point.":
            lambda b, s: fit_steps(b[[0, -1]], s[[0, -1]]),
    },
    passed="exact points give S_min = 100 and B_crit = 300. With two points that are 20 % off, your fit "
    "finds about (53, 387) instead of (50, 400), because every point counts by its relative error.",
    shape=2, meaning="(s_min, b_crit)", rtol=0.05,
)
# fmt: on


def box_step(weights, gradient, minimum, eps):
    half = eps * (np.abs(minimum) + 1)
    return np.clip(weights + half / 2 * np.sign(gradient), minimum - half, minimum + half)


MINIMUM = np.array([0.0, 1.0, -3.0])
BOX = "The box is [-0.1, 0.1], [0.8, 1.2], [-3.4, -2.6]."
CLIP = "np.clip(weights + half / 2 * np.sign(gradient), minimum - half, minimum + half)"
UNCLIPPED = "weights + half / 2 * np.sign(gradient)"

# fmt: off
check_box_step = FunctionExercise(
    box_step,
    [
        Case((MINIMUM, np.array([5.0, -0.15, 0.0]), MINIMUM, 0.1), expected=(0.05, 0.9, -3),
             reason="The half-widths are [0.1, 0.2, 0.4], and a gradient of 0 moves nothing."),
        Case((np.array([0.08, 1.1, -2.7]), np.array([1.0, -1.0, 1.0]), MINIMUM, 0.1), BOX,
             expected=(0.1, 1, -2.6)),
        Case((np.array([-0.08, 0.85, -3.3]), -np.ones(3), MINIMUM, 0.1), BOX, expected=(-0.1, 0.8, -3.4)),
        Case((np.array([[-0.08, 0.85, -3.3]]), -np.ones((1, 3)), MINIMUM[None], 0.1),
             "The arrays of a layer can have any shape: here (1, 3).", expected=[(-0.1, 0.8, -3.4)]),
    ],
    {
        "The weights did not move.": (CLIP, "weights"),
        "That is downhill: the loss must grow, so add.": ("+ half / 2", "- half / 2"),
        "That is a whole half-width: go half of it.": ("half / 2", "half"),
        "Your half-width is eps |w|; it is eps (|w| + 1), or weights of zero could not move.":
            [("(np.abs(minimum) + 1)", "np.abs(minimum)"), ("half / 2", "eps * np.abs(minimum) / 2"),
             (CLIP, "weights + eps * np.abs(minimum) / 2 * np.sign(gradient)")],
        "Every weight moved alike: the half-width eps (|w| + 1) is larger for larger weights.":
            [("half / 2", "eps / 2"), (CLIP, "weights + eps / 2 * np.sign(gradient)")],
        "You follow the gradient itself: follow its sign, so that its length plays no part.":
            ("np.sign(gradient)", "gradient"),
        "You add the gradient itself: move by half a half-width times its sign.":
            ("half / 2 * np.sign(gradient)", "gradient"),
        "You left the box: clip to minimum +- half-width.": (CLIP, UNCLIPPED),
        "Clip to both edges of the box, minimum - half-width and minimum + half-width.":
            [(CLIP, f"np.minimum({UNCLIPPED}, minimum + half)"),
             (CLIP, f"np.maximum({UNCLIPPED}, minimum - half)")],
        "Your box moves with the weights: centre and width belong to the minimum.":
            lambda weights, gradient, minimum, eps: box_step(weights, gradient, weights, eps),
        "Your step is measured from the weights reached: its half-width belongs to the minimum.":
            ("half / 2", "eps * (np.abs(weights) + 1) / 2"),
        "You start from the minimum again: continue from the weights reached.": ("weights +", "minimum +"),
    },
    passed="uphill, along the sign, and never out of the box around the minimum.",
    shape=None, meaning="of the shape of the weights", rtol=1e-5,
)
# fmt: on
