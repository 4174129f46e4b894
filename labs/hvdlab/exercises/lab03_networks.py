"""Checks of lab 3, networks: forward pass, stop rule, choice of a batch size, and curvature of a slice."""

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

# fmt: off
STOP_RULE = [  # accuracies, goal and patience; whether the goal is reached; and the reason
    (([], 0.8, 2), False, "nothing is measured yet"),
    (([0.9], 0.8, 2), False, "one epoch is above the goal, and the patience is 2"),
    (([0.85, 0.82], 0.8, 2), True, "two epochs are enough for a patience of 2"),
    (([0.9, 0.9], 0.8, 3), False, "two epochs are measured, and the patience is 3"),
    (([0.7, 0.9], 0.8, 1), True, "with a patience of 1 only the last epoch decides"),
    (([0.7, 0.9], 0.8, 2), False, "only the last of two epochs is above the goal"),
    (([0.7, 0.85, 0.82], 0.8, 2), True, "the last two are above the goal"),
    (([0.85, 0.7, 0.85], 0.8, 2), False,
     "two epochs in total are above the goal, but they are not consecutive"),
    (([0.85, 0.86, 0.7], 0.8, 2), False, "the last epoch is below the goal again"),
    (([0.85, 0.7, 0.9, 0.7, 0.9], 0.8, 3), False, "three in total, never two in a row"),
    (([0.5, 0.75, 0.75], 0.75, 2), True, "exactly the goal counts: at least, not more than"),
    (([0.7, 0.81, 0.82, 0.83], 0.8, 3), True, "the last three are above the goal"),
    (([0.9, 0.9, 0.9], 0.8, 2), True, "more than two in a row count, too"),
    (([0.9, 0.7, 0.9], 0.8, 3), False, "their mean is above the goal, but each must be"),
]
# fmt: on


@exercise
def check_forward(forward: Callable) -> None:
    """Demand a ReLU after every layer but the last, for networks of one, two and three layers."""
    first = np.array([[1.0, -1.0], [1.0, -1.0]]), np.array([0.0, 1.0])
    last = np.array([[2.0], [5.0]]), np.array([-10.0])
    case = "forward of a network of two layers for the input (1, 2)"
    mistakes = {
        "A ReLU is missing: without it several layers are only one linear layer.": -14.0,
        "Add the bias before the ReLU, not after it.": 1.0,
        "The biases are missing.": 6.0,
        "The last layer has no ReLU: a network must be able to return negative numbers.": 0.0,
    }
    answer = number(call(forward, [first, last], np.array([[1.0, 2.0]])), case)
    reason = "The first layer gives (3, -3) + (0, 1) = (3, -2), and the ReLU makes it (3, 0)."
    compare(case, answer, -4.0, mistakes, reason)

    batch = np.array([[1.0, 2.0], [-1.0, 0.0], [2.0, -2.0]])
    answer = numbers(call(forward, [first, last], batch), "forward of three inputs", (3, 1))
    expected = np.array([[-4.0], [0.0], [-5.0]])  # hidden: (3, 0), (0, 2), (0, 1)
    compare(
        "forward of the inputs (1, 2), (-1, 0), (2, -2)",
        answer,
        expected,
        None,
        "One row per input.",
    )

    middle = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([-1.0, 3.0])
    answer = number(call(forward, [first, middle, last], batch[:1]), "forward of three layers")
    mistakes = {"A network can have any number of layers: loop over them.": [-4.0]}
    compare("forward of three layers", answer, 9.0, mistakes, "The second layer gives (2, 3).")
    answer = number(call(forward, [last], np.array([[1.0, 1.0]])), "forward of a single layer")
    compare("forward of a single layer", answer, -3.0, None, "A single layer is the last layer.")
    right("your network applies its layers in order, with a ReLU after all but the last.")


@exercise
def check_reached(reached: Callable) -> None:
    """Demand True where each of the last `patience` accuracies is at least the goal, else False.

    Known mistakes: to count all epochs above the goal, to require more than the goal, to look at one epoch
    only, and to return True before there are `patience` accuracies.

    Args:
        reached: The learner's `reached(accuracies, goal, patience)`.
    """
    check_yes_or_no(reached, (((list(a), *rest), *case) for (a, *rest), *case in STOP_RULE))
    right(
        "one lucky epoch does not end the training, and a run that stays at the goal is not trained on."
    )


@exercise
def check_seconds_to_goal(seconds_to_goal: Callable) -> None:
    """Demand images x epochs / speed for each run, for the batch sizes that have a speed.

    Args:
        seconds_to_goal: The learner's `seconds_to_goal(speeds, epochs, images)`.
    """
    case = "seconds_to_goal(speeds={8: 100, 32: 500}, epochs={8: [2, 3], 32: [5, 10], 64: [7]}, images=1000)"
    answer = call(seconds_to_goal, {8: 100.0, 32: 500.0}, {8: [2, 3], 32: [5, 10], 64: [7]}, 1000)
    if not isinstance(answer, dict):
        raise NotYet(f"{case} must return a dict from batch size to seconds. Received: {answer!r}")
    if 64 in answer:
        raise NotYet("No speed was measured for the batch size 64, so leave this batch size out.")
    if set(answer) != {8, 32}:
        raise NotYet(f"{case} must have the keys 8 and 32. Yours has {sorted(answer)}.")
    mistakes = {
        "Each epoch reads all images: multiply by their number.": (0.02, 0.03, 0.01, 0.02),
        "A speed is in images per second. More speed means fewer seconds, so divide by it.":
            (2e5, 3e5, 25e5, 5e6),
        "The number of epochs is missing.": (10.0, 10.0, 2.0, 2.0),
        "The speed already counts images, not batches: do not use the batch size.":
            [(20 / 8, 30 / 8, 10 / 32, 20 / 32), (160.0, 240.0, 320.0, 640.0)],
    }  # fmt: skip
    given = [numbers(answer[size], f"the seconds of batch size {size}", (2,)) for size in (8, 32)]
    reason = "For example, 1000 images x 2 epochs at 100 images per second take 20 s."
    compare(case, tuple(np.concatenate(given)), (20.0, 30.0, 10.0, 20.0), mistakes, reason)
    nan = call(seconds_to_goal, {8: 100.0}, {8: [2, math.nan]}, 1000)[8]
    if not math.isnan(nan[1]):
        raise NotYet(
            "A run that never reached the goal has nan epochs, and its seconds must be nan, too."
        )
    right("large batches can lose in spite of their speed, because they need more epochs.")


@exercise
def check_within_budget(within_budget: Callable) -> None:
    """Demand the batch sizes of which every run keeps the budget; a run that is nan does not."""
    cases = (
        ({16: [4.0, 5.0], 64: [3.0, 12.0], 256: [13.0, 14.0]}, [16],
         "one run of batch size 64 takes 12 s, so you cannot rely on it: every run must keep the budget"),
        ({16: [4.0, 10.0], 64: [20.0]}, [16], "exactly the budget is within the budget"),
        ({4: [4.0, 5.0, math.nan], 16: [6.0, 7.0, 8.0]}, [16],
         "a run of batch size 4 never reached the goal (nan). Careful: max([4, 5, nan]) is 5 in Python, and "
         "every comparison with nan is false"),
        ({4: [math.nan, 5.0], 16: [6.0]}, [16],
         "a run of batch size 4 never reached the goal (nan), so this batch size does not keep the budget"),
        ({16: [11.0]}, [], "no batch size keeps the budget, so the list is empty"),
    )  # fmt: skip
    for seconds, expected, reason in cases:
        case = f"within_budget({seconds}, budget=10)"
        answer = call(within_budget, {size: list(runs) for size, runs in seconds.items()}, 10.0)
        if answer is None or isinstance(answer, int | float | str):
            raise NotYet(f"{case} must return a list of batch sizes. Received: {answer!r}")
        if sorted(answer) != expected:
            raise NotYet(f"{case} must be {expected}, yours is {list(answer)}: {reason}.")
    right(
        "you judge a batch size by its slowest run, and a run that never arrives does not count as fast."
    )


@exercise
def check_fraction_downwards(fraction_downwards: Callable) -> None:
    """Demand the fraction of the inner points at which the second difference is negative."""
    cases = (
        ((4, 1, 0, 1, 4), 0.0, "a parabola curves upwards everywhere", {
            "A second difference below 0 curves downwards, and you counted those above 0.": 1.0,
            "You counted where the loss falls. The question is where it curves downwards.": 0.5}),
        ((0, 1, 2, 3), 0.0, "a straight line does not curve, so its second differences are 0", {
            "0 is not negative: use <, not <=.": 1.0}),
        ((0, 3, 4, 3, 0), 1.0, "an inverted parabola curves downwards at all three inner points", {
            "Divide by the number of inner points, which is 2 less than the number of losses.": 0.6,
            "Return a fraction, not a number of points.": 3.0}),
        ((0, 1, 0, 1, 4), 1 / 3, "the second differences are -2, 2, 2", {
            "Divide by the number of inner points, which is 2 less than the number of losses.": 0.2}),
    )  # fmt: skip
    for losses, expected, reason, mistakes in cases:
        case = f"fraction_downwards({losses})"
        answer = number(call_unchanged(fraction_downwards, np.array(losses, float)), case)
        compare(case, answer, expected, mistakes, f"Here {reason}.")
    right("a convex slice has the fraction 0, and an inverted bowl has 1.")
