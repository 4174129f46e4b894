"""Exercise of lab 6: the critical batch size from a straight line of epochs over the batch."""

import numpy as np

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise


def fit_law(batches, epochs):
    slope, e0 = np.polyfit(batches, epochs, 1, w=1 / np.asarray(epochs))
    return e0, e0 / slope


EIGHT_BATCHES = 2.0 ** np.arange(6, 14)
WEIGHTS = ", w=1 / np.asarray(epochs)"

# Other weights in the second case: 17.2 and 721 without, 19.5 and 866 with 1 / sqrt(epochs), 21.4 and 1186
# with 1 / epochs^2. A fit of logarithms gives 20.8 and 987.
# fmt: off
check_fit_law = FunctionExercise(
    fit_law,
    [
        Case((np.array([1000, 2000, 4000]), np.array([40.0, 50.0, 70.0])), expected=(30, 3000),
             reason="These points lie exactly on 30 (1 + B / 3000) = 30 + 0.01 B. The intercept is e0, and "
             "the slope is e0 / b_crit."),
        Case((EIGHT_BATCHES, 20 * (1 + EIGHT_BATCHES / 1000) * [1.2, 1, 1, 1, 1, 1, 1, 1.2]),
             call="fit_law of eight batches from 64 to 8192", expected=(20.63, 987.1),
             reason="These points were made with e0 = 20, b_crit = 1000 and 20 % more epochs at both ends. "
             "The relative error of each point must count the same: give np.polyfit the weights "
             "w = 1 / epochs."),
    ],
    {
        "That is (b_crit, e0): return e0 first.": ("e0, e0 / slope", "e0 / slope, e0"),
        "That is the slope. The slope of the line is e0 / b_crit, so b_crit is e0 / slope.":
            ("e0, e0 / slope", "e0, slope"),
        "These are slope and intercept, as np.polyfit returns them. e0 is the intercept.":
            ("e0, e0 / slope", "slope, e0"),
        "b_crit is upside down: intercept / slope.": ("e0 / slope", "slope / e0"),
        "You swapped slope and intercept: np.polyfit returns the slope first.":
            ("slope, e0 =", "e0, slope ="),
        "b_crit is e0 / slope, not e0 x slope.": ("e0 / slope", "e0 * slope"),
        "That is 1 / slope. The line reaches twice e0 at b_crit, so b_crit is e0 / slope.":
            ("e0 / slope", "1 / slope"),
        "Yours is a line over 1 / B, as for the steps. The epochs are a straight line over B.":
            [("polyfit(batches", "polyfit(1 / batches"),
             ("polyfit(batches", "polyfit(1 / batches", "e0 / slope", "slope / e0")],
        "These numbers belong to the steps, epochs / B. Fit the epochs.":
            ("polyfit(batches, epochs", "polyfit(batches, epochs / batches"),
        "Your line goes through the origin. Its intercept is e0, the epochs of a very small batch: fit it "
        "too.": lambda batches, epochs: (0.0, 0.0),
        "Without weights the largest batches, which have the most epochs, decide nearly alone. Give "
        "np.polyfit the weights w = 1 / epochs.": (WEIGHTS, ""),
        "Give np.polyfit the weights w = 1 / epochs, not their root or square.":
            [("np.asarray(epochs)", f"np.asarray(epochs) ** {power}") for power in (0.5, 2)],
        "Your line goes through two of the points. Leave out no point.":
            lambda batches, epochs: fit_law(batches[[0, -1]], epochs[[0, -1]]),
    },
    passed="exact points give E0 = 30 and B_crit = 3000. With two points that are 20 % off, your fit finds "
    "about (20.6, 987) instead of (20, 1000).",
    shape=2, meaning="(e0, b_crit)", rtol=0.05,
)
# fmt: on
