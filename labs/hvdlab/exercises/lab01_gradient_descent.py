"""Checks of lab 1: the gradient, the convergence test, and the largest step size."""

import math

import numpy as np

from hvdlab.exercises import NotYet, call_unchanged, right

FINITE_DIFFERENCES = 1e-3  # so much they may be off


def check_gradient(gradient) -> None:
    """The gradient of the mean squared error, (dL/dw, dL/db), on examples done by hand.

    Finite differences will do. Signs, the mean, the factor 2, the x in dL/dw, the order of the two and
    the use of all four arguments are looked at one by one.
    """
    w, b, x, y = 2.0, 1.0, np.array([1.0, 2.0, 3.0]), np.array([4.0, 3.0, 10.0])
    expected = np.array([-4.0, -4 / 3])  # the errors are -1, 2, -3
    got = _two_numbers(gradient, w, b, x, y)
    five = np.arange(1.0, 6.0), np.array([2.0, 1.0, 5.0, 4.0, 8.0])
    if np.allclose(_two_numbers(gradient, 1.0, 0.0, *five), (-10, -2.5), rtol=FINITE_DIFFERENCES):
        raise NotYet("Divide by the number of examples n, not by n - 1: the loss is a plain mean.")
    mistakes = {
        "The signs are turned round: the error is prediction minus y, and the gradient points "
        "uphill (the step subtracts it)": -expected,
        "Sum instead of mean: divide by the number of examples": 3 * expected,
        "Sum instead of mean, and the 2 from the derivative of the square is missing": 1.5
        * expected,
        "The 2 from the derivative of the square is missing": expected / 2,
        "The order is dL/dw, then dL/db": expected[::-1],
        "In dL/dw each error is multiplied by its x: that is the inner derivative": np.array(
            [-4 / 3, -4 / 3]
        ),
        "The prediction is w x + b: yours is without b": np.array([-8.0, -10 / 3]),
    }
    for mistake, wrong in mistakes.items():
        if np.allclose(got, wrong, rtol=FINITE_DIFFERENCES):
            raise NotYet(
                f"{mistake}. w=2, b=1, x=(1, 2, 3), y=(4, 3, 10) give {_show(expected)}; "
                f"yours is {_show(got)}."
            )
    if not np.allclose(got, expected, rtol=FINITE_DIFFERENCES):
        if np.allclose(got, _two_numbers(gradient, w, b, 10 * x, y - 7)):
            raise NotYet(
                "Other data give the same gradient: use the arguments x and y, not numbers of the notebook."
            )
        raise NotYet(
            f"w=2, b=1, x=(1, 2, 3), y=(4, 3, 10): the errors w x + b - y are -1, 2, -3, so the gradient is "
            f"{_show(expected)}; yours is {_show(got)}."
        )
    got = _two_numbers(gradient, 1.0, 0.0, *five)
    if not np.allclose(got, (-8, -2), rtol=FINITE_DIFFERENCES):
        raise NotYet(
            "Right for three examples, and not for five: w=1, b=0, x=(1, 2, 3, 4, 5), y=(2, 1, 5, 4, 8) give "
            f"(-8, -2); yours is {_show(got)}. Divide by the number of examples that there are."
        )
    got = _two_numbers(gradient, 3.0, -1.0, np.array([1.0, 2.0]), np.array([2.0, 5.0]))
    if not np.allclose(got, 0, atol=FINITE_DIFFERENCES):
        raise NotYet(
            "A line through all points has the gradient (0, 0). w=3, b=-1, x=(1, 2), y=(2, 5): yours "
            f"is {_show(got)}."
        )
    right("the gradient, on three and on five examples done by hand and on a perfect fit.")


def check_has_converged(has_converged) -> None:
    """Yes when the last loss differs from the one before by less than 0.1 %, else no.

    Tried on histories that are short, falling, flat, oscillating, diverging and not numbers, large
    and small, so that an absolute change, a missing abs() and a wrong percentage show.
    """
    flat = [900.0, 300.0, 100.0, 100.0, 100.0]
    cases = [
        ([], False, "No loss yet", "with fewer than two losses there is no change to look at"),
        ([5.0], False, "One loss", "with fewer than two losses there is no change to look at"),
        (flat, True, "The loss does not change any more", "compare the last loss with the one before it"),
        ([100.0, 100.0], True, "Two losses, and no change", "two losses are enough to compare"),
        ([900.0, 300.0, 100.0, 50.0], False, "The loss halves", "it is still falling"),
        (
            [100.0, 100.0, 50.0],
            False,
            "The loss stood still once, and halves now",
            "only the last loss and the one before it count",
        ),
        (
            [100.0, 99.0, 98.01],
            False,
            "The loss falls by 1 % a step",
            "the threshold is 0.1 %, which is 0.001",
        ),
        (
            [1000.0, 101.0, 100.95],
            True,
            "The last change is 0.05 %",
            "the threshold is 0.1 % of the loss before, so divide the change by that loss",
        ),
        (
            [900.0, 100.0, 100.05],
            True,
            "The loss grows by 0.05 %",
            "a change has two signs: take its absolute value",
        ),
        (
            [10.0, 20.0, 40.0, 80.0],
            False,
            "The loss doubles: the descent diverges",
            "a growing loss has a negative change, so take its absolute value",
        ),
        (
            [100.0, 80.0, 100.0, 80.0, 100.0],
            False,
            "The loss oscillates between 100 and 80",
            "compare the last loss with the one before it, with an absolute value",
        ),
        (
            [8e-6, 4e-6, 2e-6],
            False,
            "The loss is small and halves",
            "divide the change by the loss: it must be relative",
        ),
        (
            [9e6, 4.002e6, 4e6],
            True,
            "The loss is large and its last change is 0.05 %",
            "divide the change by the loss: it must be relative",
        ),
        (
            [100.0, 99.8],
            False,
            "The loss falls by 0.2 %",
            "the threshold is 0.1 %, which is 0.001",
        ),
        (
            [100.0, 99.88],
            False,
            "The loss falls by 0.12 %",
            "the threshold is 0.1 %, which is 0.001",
        ),
        (
            [100.0, 99.92],
            True,
            "The loss falls by 0.08 %",
            "the threshold is 0.1 %, which is 0.001",
        ),
        (
            [1000.0, 10.0, 9.95],
            False,
            "The last change is 0.5 % of the loss before it",
            "0.1 % of the loss before, not of the first or of the largest",
        ),
        ([1.0, math.nan, math.nan], False, "The loss is NaN", "NaN is no result: nothing compares with it"),
        (
            [1e300, math.inf, math.inf],
            False,
            "The loss is infinite: the descent has diverged",
            "infinity is no result",
        ),
    ]  # fmt: skip
    for losses, expected, what, advice in cases:
        with np.errstate(all="ignore"):
            got = call_unchanged(has_converged, list(losses))
        if not isinstance(got, bool | np.bool_):
            raise NotYet(
                f"has_converged must return True or False; for {losses} it returns {got!r}."
            )
        if got != expected:
            raise NotYet(
                f"{what}: has_converged({losses}) must be {expected}, yours is {bool(got)}. Advice: {advice}."
            )
    right(
        f"{len(cases)} histories: short, falling, flat, oscillating, diverging, NaN and infinite."
    )


def check_largest_step_size(largest_step_size) -> None:
    """2 / lambda_max of the Hessian of the mean squared error, for three sets of x done by hand."""
    cases = [
        (
            [3.0, -3.0] * 3,
            1 / 9,
            "the Hessian is 2 (9, 0; 0, 1), its eigenvalues are 18 and 2",
            {
                "You took the smallest eigenvalue (the largest is the first to diverge), or the square "
                "of the mean of x for the mean of its squares": 1.0,
                "1 / lambda is the step that reaches the bottom at once; twice that still converges": 1
                / 18,
                "Sum instead of mean: divide by the number of examples": 1 / 54,
                "The Hessian of the mean of squares has a factor 2": 2 / 9,
                "That is the sum of the eigenvalues; use the largest alone": 2 / 20,
                "Your rate is 2 / lambda upside down": 9.0,
                "You return the largest eigenvalue; the bound is 2 divided by it": 18.0,
            },
        ),
        (
            [1.0, 3.0],
            2 / (2 * (3 + math.sqrt(8))),
            "the Hessian is 2 (5, 2; 2, 1), its eigenvalues are 6 + 4 sqrt(2) and 6 - 4 sqrt(2)",
            {"The mean of x beside the diagonal is missing": 2 / 10},
        ),
        (
            [0.1, 0.3],
            4 / (2.1 + math.sqrt(4.25)),
            "the Hessian is 2 (0.05, 0.2; 0.2, 1), its eigenvalues are 2.081 and 0.019",
            {"You took an eigenvalue that is not the largest": 4 / (2.1 - math.sqrt(4.25))},
        ),
    ]
    for x, expected, why, mistakes in cases:
        got = call_unchanged(largest_step_size, np.array(x))
        got = _number(got, "largest_step_size")
        if math.isclose(got, expected, rel_tol=1e-6):
            continue
        said = f"x={tuple(x)}: {why}, so the bound is {expected:.4g}; yours is {got:.4g}."
        for mistake, wrong in mistakes.items():
            if math.isclose(got, wrong, rel_tol=1e-6):
                raise NotYet(f"{mistake}. {said}")
        raise NotYet(said)
    right("the largest step size, for three sets of x done by hand.")


def _two_numbers(gradient, *arguments):
    got = call_unchanged(gradient, *arguments)
    if got is None:
        raise NotYet("gradient returns nothing: end it with `return dw, db`.")
    try:
        numbers = np.array([float(number) for number in got])
    except (TypeError, ValueError):
        numbers = np.empty(0)
    if len(numbers) != 2:
        raise NotYet(f"gradient must return two numbers, dL/dw and dL/db. Yours returns {got!r}.")
    return numbers


def _number(got, name) -> float:
    try:
        return float(got)
    except (TypeError, ValueError):
        raise NotYet(f"{name} must return one number. Yours returns {got!r}.") from None


def _show(pair) -> str:
    return f"({pair[0]:.4g}, {pair[1]:.4g})"
