"""Exercises of lab 2: gradient, loop, convergence test, Hessian, learning rate limit, and number of steps."""

import math
from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, call_unchanged, number, numbers
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.patch_review import PatchReview

FINITE_DIFFERENCES = 1e-3  # relative tolerance: a gradient from finite differences passes
THRESHOLD = "the threshold is 0.1 %, which is 0.001"
RELATIVE = "the change must be relative, so divide it by the loss"
LAST_TWO = "compare the last loss with the one before it"
TOO_SHORT = "with fewer than two losses there is no change to compare"


def array(*values: float) -> np.ndarray:
    return np.array(values, float)


def gradient(w, b, x, y):
    error = w * x + b - y
    return 2 * np.mean(error * x), 2 * np.mean(error)


# fmt: off
check_gradient = FunctionExercise(
    gradient,
    [
        Case((2.0, 1.0, array(1, 2, 3), array(4, 3, 10)), "The errors w x + b - y are -1, 2, -3.",
             expected=(-4, -4 / 3)),
        Case((1.0, 0.0, array(1, 2, 3, 4, 5), array(2, 1, 5, 4, 8)),
             "Divide by the number of examples that the arguments have.", expected=(-8, -2)),
        Case((3.0, -1.0, array(1, 2), array(2, 5)), "A line through all points has the gradient (0, 0).",
             expected=(0, 0)),
    ],
    {
        "The signs are reversed: the error is prediction minus y, and the gradient points uphill (the step "
        "subtracts it).": ("w * x + b - y", "y - w * x - b"),
        "Sum instead of mean: divide by the number of examples.": ("np.mean", "np.sum"),
        "Sum instead of mean, and the 2 from the derivative of the square is missing.":
            ("2 * np.mean", "np.sum"),
        "The 2 from the derivative of the square is missing.": ("2 * np.mean", "np.mean"),
        "The order is dL/dw, then dL/db.":
            ("2 * np.mean(error * x), 2 * np.mean(error)", "2 * np.mean(error), 2 * np.mean(error * x)"),
        "In dL/dw each error is multiplied by its x, which is the inner derivative.": ("error * x", "error"),
        "The prediction is w x + b: yours is without b.": ("w * x + b", "w * x"),
        "Divide by the number of examples n, not by n - 1: the loss is a plain mean.":
            ("2 * np.mean", "2 * len(x) / (len(x) - 1) * np.mean"),
        "Other data give the same gradient: use the arguments x and y, not variables of the notebook.":
            ("error =", "x, y = np.arange(9.0), np.ones(9); error ="),
    },
    passed="your gradient is correct. A line through all points has the gradient (0, 0), so a descent that "
    "arrives there stays there.",
    shape=2, meaning="dL/dw and dL/db, as in `return dw, db`", rtol=FINITE_DIFFERENCES,
    atol=FINITE_DIFFERENCES,
)
# fmt: on


def descend(x, y, learning_rate, steps=1000, stop=None):
    w, b = 0.0, 18.0
    rows = [(w, b, np.mean((w * x + b - y) ** 2))]
    for _ in range(steps):
        dw, db = gradient(w, b, x, y)
        w = w - learning_rate * dw
        b = b - learning_rate * db
        rows.append((w, b, np.mean((w * x + b - y) ** 2)))
        if stop and stop([row[2] for row in rows]):
            break
    return np.array(rows)


def path_and_stop(descend: Callable, x: np.ndarray, y: np.ndarray) -> dict[str, object]:
    """Return the columns of the path of three steps, and what `stop` was asked in a longer one."""
    case = "descend(x=(1, 3), y=(16, 18), learning_rate=0.05, steps=3)"
    path = numbers(call_unchanged(descend, x, y, 0.05, 3, name="descend"), case, None)
    if path.ndim != 2 or path.shape[1] != 3:
        raise NotYet(
            f"{case} must return an array of shape (4, 3), one row (w, b, loss) for each point. "
            f"The shape of yours is {path.shape}."
        )
    asked = []

    def stop(losses: list[float]) -> bool:
        asked.append([float(loss) for loss in losses])
        return len(losses) >= 3

    rows = len(np.asarray(call(descend, x, y, 0.05, 50, stop, name="descend")))
    return {
        "The number of rows in": len(path),
        "The column of w in": path[:, 0],
        "The column of b in": path[:, 1],
        "The column of the loss in": path[:, 2],
        "The number of losses that stop gets after the first step of": len(asked[0])
        if asked
        else 0,
        "The number of rows if stop is True after 2 steps in": rows,
    }


# fmt: off
check_descend = FunctionExercise(
    descend,
    [Case((array(1, 3), array(16, 18)), call="descend(x=(1, 3), y=(16, 18), learning_rate=0.05, steps=3)",
          reason="At the start the loss is 2 and the gradient is (2, 2). So the second row has w = -0.1 and "
          "b = 17.9.")],
    {
        "The start is the first row, and each step adds one.":
            ("return np.array(rows)", "return np.array(rows[1:])"),
        "The start, w=0 and b=18, is missing: it is the first row.":
            ("return np.array(rows)", "return np.array(rows[1:])", "range(steps)", "range(steps + 1)"),
        "The step must go against the gradient: subtract it.": ("- learning_rate", "+ learning_rate"),
        "You changed w before you computed dL/db: compute both derivatives at the old point.":
            ("b = b - learning_rate * db", "b = b - learning_rate * gradient(w, b, x, y)[1]"),
        "The learning rate is missing.": ("learning_rate * d", "d"),
        "Each row must have the loss of its own w and b, and yours has that of the point before.":
            ("        w = w -", "        last = np.mean((w * x + b - y) ** 2)\n        w = w -",
             "rows.append((w, b, np.mean((w * x + b - y) ** 2)))", "rows.append((w, b, last))"),
        "Call stop after every step, with all losses so far.": ("if stop and", "if False and"),
        "stop gets the losses of all points, also that of the start.":
            ("[row[2] for row in rows]", "[row[2] for row in rows[1:]]"),
        "If stop returns True, the loop must end.": ("break", "continue"),
    },
    passed="both parameters move together, the start is kept, and your loop asks `stop` after every step.",
    observe=path_and_stop,
)
# fmt: on


def has_converged(losses):
    return len(losses) > 1 and bool(abs(losses[-1] - losses[-2]) < 0.001 * losses[-2])


# fmt: off
check_has_converged = FunctionExercise(
    has_converged,
    [Case((losses,), f"{reason}.", expected=expected) for losses, expected, reason in [
        ([], False, f"No loss yet: {TOO_SHORT}"),
        ([5.0], False, f"One loss: {TOO_SHORT}"),
        ([900.0, 300.0, 100.0, 100.0, 100.0], True, f"The loss does not change any more: {LAST_TWO}"),
        ([100.0, 100.0], True, "Two losses, and no change: two losses are enough to compare"),
        ([900.0, 300.0, 100.0, 50.0], False, "The loss halves: it is still falling"),
        ([100.0, 100.0, 50.0], False,
         "The loss stood still once, and halves now: only the last loss and the one before it count"),
        ([100.0, 99.0, 98.01], False, f"The loss falls by 1 % per step: {THRESHOLD}"),
        ([1000.0, 101.0, 100.95], True,
         "The last change is 0.05 %: the threshold is 0.1 % of the loss before, so divide the change by it"),
        ([900.0, 100.0, 100.05], True,
         "The loss grows by 0.05 %: a change can have either sign, so take its absolute value"),
        ([10.0, 20.0, 40.0, 80.0], False, "The loss doubles, because the descent diverges: a growing loss "
         "has a negative change, so take its absolute value"),
        ([100.0, 80.0, 100.0, 80.0, 100.0], False,
         f"The loss oscillates between 100 and 80: {LAST_TWO}, with an absolute value"),
        ([8e-6, 4e-6, 2e-6], False, f"The loss is small and halves: {RELATIVE}"),
        ([9e6, 4.002e6, 4e6], True, f"The loss is large and its last change is 0.05 %: {RELATIVE}"),
        ([100.0, 99.8], False, f"The loss falls by 0.2 %: {THRESHOLD}"),
        ([100.0, 99.88], False, f"The loss falls by 0.12 %: {THRESHOLD}"),
        ([100.0, 99.92], True, f"The loss falls by 0.08 %: {THRESHOLD}"),
        ([1000.0, 10.0, 9.95], False, "The last change is 0.5 % of the loss before it: the threshold is "
         "0.1 % of the loss before, not of the first or of the largest loss"),
        ([1.0, math.nan, math.nan], False, "The loss is NaN: NaN is no result, and nothing equals it"),
        ([1e300, math.inf, math.inf], False,
         "The loss is infinite, because the descent has diverged: infinity is no result"),
    ]],
    passed="your test reads the last two losses, judges the change relative to the loss, and is not deceived "
    "by a loss that oscillates, diverges or is NaN.",
    shape=bool,
)
# fmt: on


def hessian(x):
    return 2 * np.array([[np.mean(x * x), np.mean(x)], [np.mean(x), 1.0]])


# fmt: off
check_hessian = FunctionExercise(
    hessian,
    [
        Case((array(1, 3),), "The mean of x is 2, and the mean of the squares of x is 5.",
             expected=[[10, 4], [4, 2]]),
        Case((array(3, -3, 3, -3),), "Use the x that is passed, with any number of examples.",
             expected=[[18, 0], [0, 2]]),
    ],
    {
        "The derivative of the square has a factor 2, which is missing.": ("2 * np.array", "np.array"),
        "Sum instead of mean: divide by the number of examples.": ("2 * np", "2 * len(x) * np"),
        "The order is w, then b: the mean of the squares of x belongs at the upper left.":
            ("np.mean(x * x)", "1", "1.0", "np.mean(x * x)"),
        "The upper left element is the mean of the squares of x, and yours is the square of the mean.":
            ("np.mean(x * x)", "np.mean(x) ** 2"),
        "The mixed derivatives outside the diagonal are missing: they are 2 times the mean of x.":
            ("np.mean(x)], [np.mean(x), 1.0]", "0], [0, 1.0]"),
        "The second derivative with respect to b is 2, and not 0: the derivative of 2 e by b is 2.":
            ("1.0]", "0.0]"),
    },
    passed="the Hessian of x = (3, -3, 3, -3) is diagonal, because the mean of these inputs is 0.",
    shape=(2, 2),
)
# fmt: on


def largest_step_size(x):
    return 2 / max(np.linalg.eigvalsh(hessian(x)))


# fmt: off
check_largest_step_size = FunctionExercise(
    largest_step_size,
    [
        Case((array(3, -3, 3, -3, 3, -3),), expected=1 / 9,
             reason="The Hessian is 2 (9, 0; 0, 1), and its eigenvalues are 18 and 2."),
        Case((array(1, 3),), expected=1 / (3 + math.sqrt(8)),
             reason="The Hessian is 2 (5, 2; 2, 1), and its eigenvalues are 6 + sqrt(32) and 6 - sqrt(32)."),
        Case((array(0.1, 0.3),), expected=4 / (2.1 + math.sqrt(4.25)),
             reason="The Hessian is 2 (0.05, 0.2; 0.2, 1), and its eigenvalues are 2.081 and 0.019."),
    ],
    {
        "You took the smallest eigenvalue, but the largest one diverges first.": ("max(", "min("),
        "You took the square of the mean of x instead of the mean of its squares.":
            ("hessian(x)", "2 * np.array([[np.mean(x) ** 2, np.mean(x)], [np.mean(x), 1]])"),
        "1 / lambda is the step that reaches the minimum at once; twice that still converges.":
            ("2 /", "1 /"),
        "Sum instead of mean: divide by the number of examples.": ("hessian(x)", "len(x) * hessian(x)"),
        "The Hessian of the mean of squares has a factor 2.": ("2 /", "4 /"),
        "That is 2 divided by the sum of the eigenvalues; use only the largest.": ("max(", "sum("),
        "Your bound is upside down: it is 2 / lambda.": ("2 / max", "0.5 * max"),
        "You return the largest eigenvalue; the bound is 2 divided by it.": ("2 / ", ""),
        "The mean of x outside the diagonal is missing.": ("np.linalg.eigvalsh", "np.diag"),
        "You took an eigenvalue that is not always the largest: their order is not known.":
            ("max(np.linalg.eigvalsh(hessian(x)))", "np.linalg.eigvals(hessian(x))[0]"),
    },
    passed="your limit comes from the largest eigenvalue, the direction that diverges first.",
)
# fmt: on


def steps_needed(condition, reduction):
    factor = (condition - 1) / (condition + 1)
    return math.ceil(math.log(reduction) / -math.log(factor)) if factor else 1


# fmt: off
check_steps_needed = FunctionExercise(
    steps_needed,
    [
        Case((3, 1000), "Each step leaves 0.5 of the distance.", expected=10),
        Case((9, 100), "Each step leaves 0.8 of the distance.", expected=21),
        Case((199, 1000), "Each step leaves 0.99 of the distance.", expected=688),
        Case((1, 1000), "With a condition number of 1 the first step reaches the minimum.", expected=1),
    ],
    {
        "Round up: a step less does not reduce the distance far enough.": ("math.ceil", "math.floor"),
        "Return a whole number of steps, rounded up.": ("math.ceil", "float"),
        "The factor is (k - 1) / (k + 1), and yours has the denominator k.":
            [("(condition + 1)", "condition"), ("(condition + 1)", "condition", "math.ceil", "float")],
        "The logarithm of a factor below 1 is negative: divide by minus this logarithm.":
            [("-math.log", "math.log"), ("-math.log", "math.log", "ceil", "floor"),
             ("-math.log", "math.log", "math.ceil", "float")],
        "The loss shrinks by the square of the factor. The question is about the distance.":
            ("math.log(reduction) / ", "math.log(reduction) / 2 / "),
    },
    passed="a long valley needs many steps, and a round bowl needs one.", meaning="of steps", rtol=1e-9,
)
# fmt: on


def fit(x, y, steps):
    w, b, losses = 0.0, 0.0, []
    learning_rate = 0.95 * 2 / max(np.linalg.eigvalsh(hessian(x)))
    for _ in range(steps + 1):
        errors = w * x + b - y
        losses.append(np.mean(errors**2))
        w = w - learning_rate * 2 * np.mean(errors * x)
        b = b - learning_rate * 2 * np.mean(errors)
    return losses


def rising_loss(fit: Callable, x: list, y: list, steps: int) -> str:
    """Return which step raises the loss, as a sentence; "" if none does."""
    losses = np.array(fit(array(*x), array(*y), steps))
    falls = np.diff(losses) <= 1e-9 * losses[0]  # false for nan
    if falls.all():
        return ""
    step = int(np.argmin(falls))
    return f"Step {step + 1} raises the loss from {losses[step]:.4g} to {losses[step + 1]:.4g}."


def unusable_data(x: list, y: list, steps: int) -> str:
    if not 1 <= len(x) == len(y):
        return f"x and y must be of equal length, with one number or more, yours {len(x)} and {len(y)}."
    if not all(isinstance(value, int | float) and abs(value) <= 1e4 for value in [*x, *y]):
        return "x and y must contain numbers from -10,000 to 10,000."
    return "" if 1 <= steps <= 1000 else f"steps must be from 1 to 1000. Received: {steps}"


# fmt: off
FIT_REVIEW = PatchReview(
    fit,
    {
        "a": ("np.linalg.eigvalsh(hessian(x))", "np.diag(hessian(x))"),
        "b": ("max(np.linalg.eigvalsh(hessian(x)))", "np.trace(hessian(x))"),
        "c": ("    learning_rate = 0.95 * 2 / max(np.linalg.eigvalsh(hessian(x)))",
              "    x = x - np.mean(x)  # now the Hessian is diagonal\n"
              "    learning_rate = 0.95 * 2 / (2 * np.mean(x**2))"),
        "d": ("2 / max", "2 / len(x) / max", "2 * np.mean(", "2 * np.sum("),
    },
    rising_loss,
    example={"x": [-3.0, -1.0, 1.0, 3.0], "y": [-5.0, 0.0, 4.0, 9.0], "steps": 20},
    tried=[{"x": x, "y": y, "steps": 20} for x, y in [
        ([-3.0, -1.0, 1.0, 3.0], [-5.0, 0.0, 4.0, 9.0]), ([1.0, 3.0], [4.0, 6.0]), ([2.0], [5.0]),
        ([0.1, 0.3], [4.0, 6.0]), ([5.0, 6.0, 7.0], [1.0, -4.0, 2.0]), ([0.0, 0.0], [1.0, 3.0]),
        ([-100.0, 40.0, 7.0], [3.0, 2.0, 1.0]),
    ]],
    check_case=unusable_data,
)
# fmt: on


def review_fit():
    return {
        "a": {"x": [1.0, 3.0], "y": [4.0, 6.0], "steps": 20},
        "b": "correct",
        "c": {"x": [0.1, 0.3], "y": [4.0, 6.0], "steps": 20},
        "d": "correct",
    }


check_review_fit = FunctionExercise(
    review_fit,
    [Case(())],
    observe=FIT_REVIEW.verdicts,
    passed="the diagonal misses the slope between w and b, and centred inputs leave the curvature 2 of b. "
    "The trace is safe, because it is the sum of all eigenvalues, and none of them is negative.",
)


MOST_GRADIENTS = 500


def learning_rate_limit(gradient_at, theta):
    v = np.random.default_rng(0).normal(size=theta.size)
    here = gradient_at(theta)
    for _ in range(100):
        v = v / np.linalg.norm(v)
        product = gradient_at(theta + v) - here
        eigenvalue, v = v @ product, product
    return 2 / eigenvalue


def measured_limit(
    limit: Callable, curvatures: np.ndarray, turned: bool, distance: float
) -> dict[str, object]:
    """Return a learner's limit as a multiple of the right one: 1, if it is right within 5 %.

    Args:
        curvatures: the eigenvalues of the Hessian.
        turned: the steepest eigenvector is (1, -1, 1, -1, ...), divided by its length. Otherwise it is the
            first axis.
        distance: of the start from the minimum, along the flattest eigenvector.
    """
    size, calls = len(curvatures), []
    steepest = (-1.0) ** np.arange(size) / math.sqrt(size) if turned else np.eye(size)[0]
    mirror = (
        steepest - np.eye(size)[0]
    )  # the reflection that exchanges the first axis and `steepest`
    mirror = mirror / (np.linalg.norm(mirror) or 1)

    def reflected(v: np.ndarray) -> np.ndarray:
        return v - 2 * mirror * (mirror @ v)

    minimum = np.linspace(-1, 2, size)
    start = minimum + reflected(distance * np.eye(size)[-1])

    def gradient_at(theta: np.ndarray) -> np.ndarray:
        calls.append(1)
        if len(calls) > MOST_GRADIENTS:
            raise NotYet(
                f"For a loss with {size} parameters learning_rate_limit calls gradient_at more than "
                f"{MOST_GRADIENTS} times."
            )
        offset = np.asarray(theta, float) - minimum
        return reflected(np.sort(curvatures)[::-1] * reflected(offset))

    found = number(
        call_unchanged(limit, gradient_at, start, name="learning_rate_limit"), "learning_rate_limit"
    )
    ratio = found * np.max(curvatures) / 2
    return {
        "The learning rate, as a multiple of the limit, for": 1.0
        if 0.95 <= ratio <= 1.05
        else ratio
    }


def several_curvatures(size: int, condition_number: float, largest: float) -> np.ndarray:
    return largest * np.geomspace(1 / condition_number, 1, size)


def largest_on_the_diagonal(gradient_at, theta):
    here, axes = gradient_at(theta), np.eye(theta.size)
    return 2 / max((gradient_at(theta + axis) - here) @ axis for axis in axes)


# fmt: off
check_learning_rate_limit = FunctionExercise(
    learning_rate_limit,
    [Case(tuple(case), f"{reason}.", f"a loss with {what}") for what, reason, *case in [
        ("the curvatures 18 and 2", "The steepest direction decides, and its limit is 2 / 18",
         (18.0, 2.0), False, 1.0),
        ("one parameter and the curvature 0.001", "The limit is 2000: the learning rates of other losses "
         "say nothing about it", (0.001,), False, 1.0),
        ("the curvatures 50 and 0.5, where the steepest direction is (1, -1)", "The steepest direction can "
         "mix the parameters, so do not look along each parameter alone", (50.0, 0.5), True, 4.0),
        ("100 parameters, all with the curvature 3, at the minimum", "At the minimum the gradient is 0: "
         "compare the gradients of other points", (3.0,) * 100, True, 0.0),
        ("300 parameters and the condition number 1000", "Many curvatures are close to the largest one, so "
         "the search needs more repetitions",
         tuple(several_curvatures(300, 1000, 40)), True, 10.0),
        ("600 parameters and the condition number 10", f"At most {MOST_GRADIENTS} gradients are allowed, so "
         "the whole Hessian cannot be computed", tuple(several_curvatures(600, 10, 0.2)), True, 10.0),
    ]],
    {
        "That is 1 / lambda, which reaches the minimum at once along the steepest direction. The limit is "
        "twice as large.": ("2 / eigenvalue", "1 / eigenvalue"),
        "The gradient is 0 at the minimum, and the minimum is not at 0: subtract the gradient at theta.":
            (" - here", ""),
        "That is the largest curvature along a single parameter. A direction that mixes parameters can be "
        "steeper.": largest_on_the_diagonal,
        "The search starts along the gradient, which is 0 at the minimum.":
            ("np.random.default_rng(0).normal(size=theta.size)", "gradient_at(theta)"),
        "The search ends too early: repeat it until the result hardly changes.": ("range(100)", "range(5)"),
        "That is the limit of an average direction, and the steepest one decides.":
            ("eigenvalue, v = v @ product, product",
             "eigenvalue, v = v @ product, np.random.default_rng(0).normal(size=theta.size)"),
    },
    passed="your function found the limit of six losses from their gradients alone. It needs no Hessian, so "
    "it can also measure a network.",
    observe=measured_limit,
)
# fmt: on
