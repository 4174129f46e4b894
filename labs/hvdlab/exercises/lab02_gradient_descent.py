"""Checks of lab 2: the gradient, the convergence test, and the largest step size."""

import math
from collections.abc import Callable

import numpy as np

from hvdlab.exercises import (
    NotYet,
    call_unchanged,
    check_yes_or_no,
    compare,
    exercise,
    number,
    numbers,
    right,
)

FINITE_DIFFERENCES = 1e-3  # relative tolerance: a gradient from finite differences passes
FLAT = [900.0, 300.0, 100.0, 100.0, 100.0]
THRESHOLD = "the threshold is 0.1 %, which is 0.001"
RELATIVE = "the change must be relative, so divide it by the loss"
LAST_TWO = "compare the last loss with the one before it"
TOO_SHORT = "with fewer than two losses there is no change to compare"

# fmt: off
HISTORIES = [  # of the loss, whether the descent has converged, and the reason
    ([], False, f"No loss yet: {TOO_SHORT}"),
    ([5.0], False, f"One loss: {TOO_SHORT}"),
    (FLAT, True, f"The loss does not change any more: {LAST_TWO}"),
    ([100.0, 100.0], True, "Two losses, and no change: two losses are enough to compare"),
    ([900.0, 300.0, 100.0, 50.0], False, "The loss halves: it is still falling"),
    ([100.0, 100.0, 50.0], False,
     "The loss stood still once, and halves now: only the last loss and the one before it count"),
    ([100.0, 99.0, 98.01], False, f"The loss falls by 1 % per step: {THRESHOLD}"),
    ([1000.0, 101.0, 100.95], True,
     "The last change is 0.05 %: the threshold is 0.1 % of the loss before, so divide the change by it"),
    ([900.0, 100.0, 100.05], True,
     "The loss grows by 0.05 %: a change can have either sign, so take its absolute value"),
    ([10.0, 20.0, 40.0, 80.0], False, "The loss doubles, because the descent diverges: a growing loss has a "
     "negative change, so take its absolute value"),
    ([100.0, 80.0, 100.0, 80.0, 100.0], False,
     f"The loss oscillates between 100 and 80: {LAST_TWO}, with an absolute value"),
    ([8e-6, 4e-6, 2e-6], False, f"The loss is small and halves: {RELATIVE}"),
    ([9e6, 4.002e6, 4e6], True, f"The loss is large and its last change is 0.05 %: {RELATIVE}"),
    ([100.0, 99.8], False, f"The loss falls by 0.2 %: {THRESHOLD}"),
    ([100.0, 99.88], False, f"The loss falls by 0.12 %: {THRESHOLD}"),
    ([100.0, 99.92], True, f"The loss falls by 0.08 %: {THRESHOLD}"),
    ([1000.0, 10.0, 9.95], False, "The last change is 0.5 % of the loss before it: the threshold is 0.1 % of "
     "the loss before, not of the first or of the largest loss"),
    ([1.0, math.nan, math.nan], False, "The loss is NaN: NaN is no result, and nothing equals it"),
    ([1e300, math.inf, math.inf], False,
     "The loss is infinite, because the descent has diverged: infinity is no result"),
]
# fmt: on


@exercise
def check_gradient(gradient: Callable) -> None:
    """Demand the gradient of the mean squared error, (dL/dw, dL/db), on examples computed by hand.

    Finite differences are accepted.

    Args:
        gradient: The learner's `gradient(w, b, x, y)`.
    """
    x, y = np.array([1.0, 2.0, 3.0]), np.array([4.0, 3.0, 10.0])
    expected = np.array([-4.0, -4 / 3])  # the errors are -1, 2, -3
    answer = _gradient(gradient, 2.0, 1.0, x, y)
    five = np.arange(1.0, 6.0), np.array([2.0, 1.0, 5.0, 4.0, 8.0])
    if np.allclose(_gradient(gradient, 1.0, 0.0, *five), (-10, -2.5), rtol=FINITE_DIFFERENCES):
        raise NotYet("Divide by the number of examples n, not by n - 1: the loss is a plain mean.")
    mistakes = {
        "The signs are reversed: the error is prediction minus y, and the gradient points uphill (the step "
        "subtracts it).": -expected,
        "Sum instead of mean: divide by the number of examples.": 3 * expected,
        "Sum instead of mean, and the 2 from the derivative of the square is missing.": 1.5 * expected,
        "The 2 from the derivative of the square is missing.": expected / 2,
        "The order is dL/dw, then dL/db.": expected[::-1],
        "In dL/dw each error is multiplied by its x, which is the inner derivative.": [(-4 / 3, -4 / 3)],
        "The prediction is w x + b: yours is without b.": np.array([-8.0, -10 / 3]),
        "Other data give the same gradient: use the arguments x and y, not variables of the notebook.":
            _gradient(gradient, 2.0, 1.0, 10 * x, y - 7),
    }  # fmt: skip
    compare(
        "The gradient for w=2, b=1, x=(1, 2, 3), y=(4, 3, 10)", answer, expected, mistakes,
        "The errors w x + b - y are -1, 2, -3.", rtol=FINITE_DIFFERENCES,
    )  # fmt: skip
    compare(
        "Right for three examples, and not for five: the gradient for w=1, b=0, x=(1, 2, 3, 4, 5), "
        "y=(2, 1, 5, 4, 8)", _gradient(gradient, 1.0, 0.0, *five), (-8, -2),
        otherwise="Divide by the number of examples that the arguments have.", rtol=FINITE_DIFFERENCES,
    )  # fmt: skip
    compare(
        "A line through all points has the gradient (0, 0): that for w=3, b=-1, x=(1, 2), y=(2, 5)",
        _gradient(gradient, 3.0, -1.0, np.array([1.0, 2.0]), np.array([2.0, 5.0])), (0, 0),
        atol=FINITE_DIFFERENCES,
    )  # fmt: skip
    right("the gradient, on three and on five examples computed by hand and on a perfect fit.")


@exercise
def check_has_converged(has_converged: Callable) -> None:
    """Demand True where the last loss differs from the one before by less than 0.1 %, else False.

    The histories of the loss are short, falling, flat, oscillating, diverging or not finite, with large and
    small values, so that an absolute change, a missing abs() and a wrong percentage are found.

    Args:
        has_converged: The learner's `has_converged(losses)`.
    """
    cases = (((list(losses),), expected, reason) for losses, expected, reason in HISTORIES)
    check_yes_or_no(has_converged, cases)
    right(
        f"{len(HISTORIES)} histories: short, falling, flat, oscillating, diverging, NaN and infinite."
    )


@exercise
def check_largest_step_size(largest_step_size: Callable) -> None:
    """Demand 2 / lambda_max of the Hessian of the mean squared error, for three x computed by hand.

    Args:
        largest_step_size: The learner's `largest_step_size(x)`.
    """
    # fmt: off
    cases = [
        ([3.0, -3.0] * 3, 1 / 9, "The Hessian is 2 (9, 0; 0, 1), and its eigenvalues are 18 and 2.", {
            "You took the smallest eigenvalue, but the largest one diverges first. Or you took the square of "
            "the mean of x instead of the mean of its squares.": 1.0,
            "1 / lambda is the step that reaches the minimum at once; twice that still converges.": 1 / 18,
            "Sum instead of mean: divide by the number of examples.": 1 / 54,
            "The Hessian of the mean of squares has a factor 2.": 2 / 9,
            "That is 2 divided by the sum of the eigenvalues; use only the largest.": 2 / 20,
            "Your bound is upside down: it is 2 / lambda.": 9.0,
            "You return the largest eigenvalue; the bound is 2 divided by it.": 18.0,
        }),
        ([1.0, 3.0], 2 / (2 * (3 + math.sqrt(8))),
         "The Hessian is 2 (5, 2; 2, 1), and its eigenvalues are 6 + 4 sqrt(2) and 6 - 4 sqrt(2).",
         {"The mean of x outside the diagonal is missing.": 2 / 10}),
        ([0.1, 0.3], 4 / (2.1 + math.sqrt(4.25)),
         "The Hessian is 2 (0.05, 0.2; 0.2, 1), and its eigenvalues are 2.081 and 0.019.",
         {"You took an eigenvalue that is not the largest.": 4 / (2.1 - math.sqrt(4.25))}),
    ]
    # fmt: on
    for x, expected, reason, mistakes in cases:
        case = f"largest_step_size of x={tuple(x)}"
        answer = number(call_unchanged(largest_step_size, np.array(x)), case)
        mistakes = {f"{mistake} {reason}": wrong for mistake, wrong in mistakes.items()}
        compare(case, answer, expected, mistakes, reason)
    right("the largest step size, for three sets of x computed by hand.")


def _gradient(gradient: Callable, *arguments: object) -> np.ndarray:
    answer = call_unchanged(gradient, *arguments)
    return numbers(answer, "gradient", 2, "dL/dw and dL/db, as in `return dw, db`")
