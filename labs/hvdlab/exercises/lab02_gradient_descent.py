"""Checks of lab 2: gradient, loop, convergence test, Hessian, largest step size, and number of steps."""

import math
from collections.abc import Callable

import numpy as np

from hvdlab.exercises import (
    NotYet,
    call,
    call_unchanged,
    check_yes_or_no,
    compare,
    exercise,
    number,
    numbers,
    right,
)

TWO_EXAMPLES = np.array([1.0, 3.0]), np.array([16.0, 18.0])  # errors at w=0, b=18: 2 and 0
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
    right(
        "your gradient is correct. A line through all points has the gradient (0, 0), so a descent that "
        "arrives there stays there."
    )


@exercise
def check_descend(descend: Callable) -> None:
    """Demand the path of a gradient descent on two examples, the start included, and the use of `stop`.

    Args:
        descend: The learner's `descend(x, y, learning_rate, steps, stop)`.
    """
    case = "descend(x=(1, 3), y=(16, 18), learning_rate=0.05, steps=3)"
    path = numbers(call_unchanged(descend, *TWO_EXAMPLES, 0.05, 3), case, None)
    if path.shape == (3, 3):
        raise NotYet(
            f"{case} must return 4 rows, yours has 3: the start is the first row, and each of the 3 steps "
            "adds one."
        )
    if path.shape != (4, 3):
        raise NotYet(
            f"{case} must return an array of shape (4, 3), one row (w, b, loss) for each point. "
            f"The shape of yours is {path.shape}."
        )
    right_path = _path(sign=-1)
    if np.allclose(path[0, :2], (-0.1, 17.9)):
        raise NotYet("The start, w=0 and b=18, is missing: it is the first row.")
    mistakes = {
        "The step must go against the gradient: subtract it.": _path(sign=1),
        "You changed w before you computed dL/db: compute both derivatives at the old point.":
            _path(sign=-1, one_by_one=True),
        "The learning rate is missing.": _path(sign=-1, rate=1.0),
    }  # fmt: skip
    compare(
        f"The column of w in {case}", path[:, 0], right_path[:, 0],
        {text: wrong[:, 0] for text, wrong in mistakes.items()},
        "At the start the gradient is (2, 2), so the second row has w = -0.1.",
    )  # fmt: skip
    compare(
        f"The column of b in {case}", path[:, 1], right_path[:, 1],
        {text: wrong[:, 1] for text, wrong in mistakes.items()},
        "At the start the gradient is (2, 2), so the second row has b = 17.9.",
    )  # fmt: skip
    stale = np.array([right_path[0, 2], *right_path[:-1, 2]])
    compare(
        f"The column of the loss in {case}", path[:, 2], right_path[:, 2],
        {"Each row must have the loss of its own w and b, and yours has that of the point before.": stale},
        "The loss at the start is 2.",
    )  # fmt: skip
    _check_stop(descend)
    right(
        "both parameters move together, the start is kept, and your loop asks `stop` after every step."
    )


def _check_stop(descend: Callable) -> None:
    asked = []

    def stop(losses: list[float]) -> bool:
        asked.append([float(loss) for loss in losses])
        return len(losses) >= 3

    path = np.asarray(call(descend, *TWO_EXAMPLES, 0.05, 50, stop))
    if not asked:
        raise NotYet("Your loop never calls stop: call it after every step with all losses so far.")
    if len(asked[0]) != 2:
        raise NotYet(
            f"After the first step stop must get 2 losses, of the start and of the new point. It got "
            f"{len(asked[0])}."
        )
    if len(path) != 3:
        raise NotYet(
            f"stop returned True after 2 steps, so descend must return 3 rows. Yours has {len(path)}."
        )


def _path(sign: int, rate: float = 0.05, one_by_one: bool = False) -> np.ndarray:
    """Return the path of 3 steps on TWO_EXAMPLES, right or with a mistake."""
    x, y = TWO_EXAMPLES
    w, b = 0.0, 18.0
    rows = [(w, b, np.mean((w * x + b - y) ** 2))]
    for _ in range(3):
        errors = w * x + b - y
        w_new = w + sign * rate * 2 * np.mean(errors * x)
        if one_by_one:
            errors = w_new * x + b - y
        w, b = w_new, b + sign * rate * 2 * np.mean(errors)
        rows.append((w, b, np.mean((w * x + b - y) ** 2)))
    return np.array(rows)


@exercise
def check_has_converged(has_converged: Callable) -> None:
    """Demand True where the last loss differs from the one before by less than 0.1 %, else False.

    The histories of the loss are short, falling, flat, oscillating, diverging or not finite, with large and
    small values, so that an absolute change, a missing abs() and a wrong percentage are found.
    """
    cases = (((list(losses),), expected, reason) for losses, expected, reason in HISTORIES)
    check_yes_or_no(has_converged, cases)
    right(
        "your test reads the last two losses, judges the change relative to the loss, and is not deceived by "
        "a loss that oscillates, diverges or is NaN."
    )


@exercise
def check_hessian(hessian: Callable) -> None:
    """Demand the matrix of second derivatives of the mean squared error, for x computed by hand."""
    case = "hessian(x=(1, 3))"
    answer = numbers(call_unchanged(hessian, np.array([1.0, 3.0])), case, (2, 2))
    mistakes = {
        "The derivative of the square has a factor 2, which is missing.": [[5, 2], [2, 1]],
        "Sum instead of mean: divide by the number of examples.": [[20, 8], [8, 4]],
        "The order is w, then b: the mean of the squares of x belongs at the upper left.":
            [[2, 4], [4, 10]],
        "The upper left element is the mean of the squares of x, and yours is the square of the mean.":
            [[8, 4], [4, 2]],
        "The mixed derivatives outside the diagonal are missing: they are 2 times the mean of x.":
            [[10, 0], [0, 2]],
        "The second derivative with respect to b is 2, and not 0: the derivative of 2 e by b is 2.":
            [[10, 4], [4, 0]],
    }  # fmt: skip
    compare(
        case, answer, np.array([[10.0, 4.0], [4.0, 2.0]]),
        {text: np.array(wrong, float) for text, wrong in mistakes.items()},
        "The mean of x is 2, and the mean of the squares of x is 5.",
    )  # fmt: skip
    compare(
        "hessian(x=(3, -3, 3, -3))",
        numbers(call_unchanged(hessian, np.array([3.0, -3.0, 3.0, -3.0])), "hessian", (2, 2)),
        np.diag([18.0, 2.0]), otherwise="Use the x that is passed, with any number of examples.",
    )  # fmt: skip
    right("the Hessian of x = (3, -3, 3, -3) is diagonal, because the mean of these inputs is 0.")


@exercise
def check_steps_needed(steps_needed: Callable) -> None:
    """Demand the smallest n with ((k - 1) / (k + 1))^n <= 1 / reduction."""
    cases = ((3, 1000, 10), (9, 100, 21), (199, 1000, 688), (1, 1000, 1))
    for condition, reduction, expected in cases:
        case = f"steps_needed({condition}, {reduction})"
        answer = number(call(steps_needed, condition, reduction), case, "of steps")
        factor = (condition - 1) / (condition + 1)
        mistakes = {}
        if condition == 1:
            mistakes["With a condition number of 1 the first step reaches the minimum."] = 0.0
        else:
            exact = math.log(reduction) / -math.log(factor)
            other = math.log(reduction) / -math.log((condition - 1) / condition)
            mistakes = {
                "Round up: a step less does not reduce the distance far enough.": math.floor(exact),
                "Return a whole number of steps, rounded up.": exact,
                "The factor is (k - 1) / (k + 1), and yours has the denominator k.":
                    [math.ceil(other), other],
                "The logarithm of a factor below 1 is negative: divide by minus this logarithm.":
                    [-exact, math.ceil(-exact), math.floor(-exact)],
                "The loss shrinks by the square of the factor. The question is about the distance.":
                    math.ceil(exact / 2),
            }  # fmt: skip
        reason = f"Each step leaves {factor:.4g} of the distance."
        compare(case, answer, expected, mistakes, reason, rtol=1e-9)
    right("a long valley needs many steps, and a round bowl needs one.")


@exercise
def check_largest_step_size(largest_step_size: Callable) -> None:
    """Demand 2 / lambda_max of the Hessian of the mean squared error, for three x computed by hand."""
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
    right("your limit comes from the largest eigenvalue, the direction that diverges first.")


def _gradient(gradient: Callable, *arguments: object) -> np.ndarray:
    answer = call_unchanged(gradient, *arguments)
    return numbers(answer, "gradient", 2, "dL/dw and dL/db, as in `return dw, db`")
