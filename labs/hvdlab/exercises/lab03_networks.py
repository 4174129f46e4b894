"""Exercises of lab 3, networks: forward pass, stop rule, choice of a batch size, and curvature of a slice."""

from collections.abc import Callable
from math import inf, nan

import numpy as np

from hvdlab.exercises import NotYet, call_unchanged, numbers, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise

FIRST = np.array([[1.0, -1.0], [1.0, -1.0]]), np.array([0.0, 1.0])
MIDDLE = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([-1.0, 3.0])
LAST = np.array([[2.0], [5.0]]), np.array([-10.0])
INPUTS = np.array([[1.0, 2.0], [-1.0, 0.0], [2.0, -2.0]])


def forward(network, inputs):
    hidden = inputs
    for number, (weights, bias) in enumerate(network, start=1):
        hidden = hidden @ weights + bias
        if number < len(network):
            hidden = np.maximum(hidden, 0)
    return hidden


# fmt: off
check_forward = FunctionExercise(
    forward,
    [
        Case(([FIRST, LAST], INPUTS[:1]), call="forward of a network of two layers for the input (1, 2)",
             reason="The first layer gives (3, -3) + (0, 1) = (3, -2), and the ReLU makes it (3, 0).",
             expected=[[-4]]),
        Case(([FIRST, LAST], INPUTS), call="forward of the inputs (1, 2), (-1, 0), (2, -2)",
             reason="Return one row per input. After the ReLU the hidden ones are (3, 0), (0, 2), (0, 1).",
             expected=[[-4], [0], [-5]]),
        Case(([FIRST, MIDDLE, LAST], INPUTS[:1]), call="forward of three layers for the input (1, 2)",
             reason="The second layer gives (2, 3).", expected=[[9]]),
        Case(([LAST], np.array([[1.0, 1.0]])), call="forward of a single layer for the input (1, 1)",
             reason="A single layer is the last layer, so it has no ReLU.", expected=[[-3]]),
    ],
    {
        "A ReLU is missing: without it several layers are only one linear layer.":
            ("number < len(network)", "False"),
        "Add the bias before the ReLU, not after it.":
            ("np.maximum(hidden, 0)", "np.maximum(hidden - bias, 0) + bias"),
        "The biases are missing.": (" + bias", ""),
        "The last layer has no ReLU: a network must be able to return negative numbers.":
            ("number < len(network)", "True"),
        "The absolute value is no ReLU: a ReLU makes negative numbers 0.":
            ("np.maximum(hidden, 0)", "abs(hidden)"),
        "A network can have any number of layers: loop over them.":
            [("hidden = inputs", f"hidden = inputs; network = [network[0], network[{second}]]")
             for second in (1, -1)],
        "A single layer is the last layer, and yours has a ReLU.":
            ("number < len(network)", "number < max(len(network), 2)"),
        "Return one row per input, and not only that of the first one.": ("= inputs", "= inputs[:1]"),
    },
    passed="your network applies its layers in order, with a ReLU after all but the last.", shape=None,
)
# fmt: on


def reached(accuracies, goal, patience):
    return len(accuracies) >= patience and all(a >= goal for a in accuracies[-patience:])


# fmt: off
check_reached = FunctionExercise(
    reached,
    [Case(arguments, f"{reason}.", expected=expected) for *arguments, expected, reason in [
        ([], 0.8, 2, False, "Nothing is measured yet"),
        ([0.9], 0.8, 2, False, "One epoch is above the goal, and the patience is 2"),
        ([0.85, 0.82], 0.8, 2, True, "Two epochs are enough for a patience of 2"),
        ([0.9, 0.9], 0.8, 3, False, "Two epochs are measured, and the patience is 3"),
        ([0.7, 0.9], 0.8, 1, True, "With a patience of 1 only the last epoch decides"),
        ([0.7, 0.9], 0.8, 2, False, "Only the last of two epochs is above the goal"),
        ([0.7, 0.85, 0.82], 0.8, 2, True, "The last two are above the goal"),
        ([0.85, 0.7, 0.85], 0.8, 2, False,
         "Two epochs in total are above the goal, but they are not consecutive"),
        ([0.85, 0.86, 0.7], 0.8, 2, False, "The last epoch is below the goal again"),
        ([0.85, 0.7, 0.9, 0.7, 0.9], 0.8, 3, False, "Three in total are above the goal, never two in a row"),
        ([0.5, 0.75, 0.75], 0.75, 2, True, "Exactly the goal counts: at least, not more than"),
        ([0.7, 0.81, 0.82, 0.83], 0.8, 3, True, "The last three are above the goal"),
        ([0.9, 0.9, 0.9], 0.8, 2, True, "More than two in a row count, too"),
        ([0.9, 0.7, 0.9], 0.8, 3, False, "Their mean is above the goal, but each must be"),
    ]],
    {
        "You count all epochs that reach the goal. Only the last ones count, without a gap.":
            ("all(a >= goal for a in accuracies[-patience:])",
             "sum(a >= goal for a in accuracies) >= patience"),
        "You look at the last epoch only: use the patience.":
            ("len(accuracies) >= patience", "bool(accuracies)", "[-patience:]", "[-1:]"),
        "You always judge the last two epochs: use the patience.":
            ("patience and", "2 and", "-patience:", "-2:"),
        "The slice accuracies[-patience:] is shorter if fewer are measured: test the length, too.":
            ("len(accuracies) >= patience and ", ""),
        "Exactly the goal is enough: at least, not more than.": ("a >= goal", "a > goal"),
        "The mean of the last epochs reaches the goal, but each must.":
            ("all(a >= goal for a in accuracies[-patience:])", "np.mean(accuracies[-patience:]) >= goal"),
        "The slice must have as many epochs as the patience, and yours always has two.":
            ("-patience:", "-2:"),
        "As many epochs as the patience are enough, and you demand one more.": (">= patience", "> patience"),
        "The number of epochs must be at least the patience, and yours is compared with 2.":
            (">= patience", ">= 2"),
        "More epochs in a row than the patience reach the goal, too: at least, not exactly.":
            ("[-patience:])",
             "[-patience:]) and (len(accuracies) == patience or accuracies[-patience - 1] < goal)"),
    },
    passed="one lucky epoch does not end the training, and a run that stays at the goal is not trained on.",
    shape=bool,
)
# fmt: on


def seconds_to_goal(speeds, epochs, images):
    seconds = {}
    for batch_size, runs in epochs.items():
        if batch_size in speeds:
            seconds[batch_size] = [images * run / speeds[batch_size] for run in runs]
    return seconds


def seconds_of_each(seconds_to_goal: Callable, *arguments: object) -> dict[str, np.ndarray]:
    """Return the batch sizes of an answer in their order, and the seconds of each."""
    found = call_unchanged(seconds_to_goal, *arguments, name="seconds_to_goal")
    if not isinstance(found, dict):
        raise NotYet(
            "seconds_to_goal must return a dict from batch size to a list of seconds. "
            f"Received: {received(found)}"
        )
    sizes = np.sort(numbers(list(found), "seconds_to_goal", None, "as keys"))
    return {"The list of batch sizes in": sizes} | {
        f"The list of seconds of batch size {size:g} in": numbers(
            found[size], "seconds_to_goal", None, f"for batch size {size:g}"
        )
        for size in sizes
    }


# fmt: off
check_seconds_to_goal = FunctionExercise(
    seconds_to_goal,
    [
        Case(({8: 100.0, 32: 500.0}, {8: [2, 3], 32: [5, 10], 64: [7]}, 1000),
             "1000 images x 2 epochs at 100 images per second take 20 s. No speed was measured for the batch "
             "size 64."),
        Case(({8: 100.0}, {8: [2, nan]}, 1000),
             "A run that never reached the goal has nan epochs, and its seconds must be nan, too."),
    ],
    {
        "Each epoch reads all images: multiply by their number.": ("images * run", "run"),
        "A speed is in images per second. More speed means fewer seconds, so divide by it.":
            ("/ speeds", "* speeds"),
        "The number of epochs is missing.": ("images * run", "images"),
        "The speed already counts images, not batches: do not use the batch size.":
            [("images * run", "images * run / batch_size"), ("images * run", "images * run * batch_size")],
        "A run that never reached the goal has nan epochs, and its seconds must be nan, not 0.":
            ("images * run", "images * np.nan_to_num(run)"),
        "You left out a run that never reached the goal: its seconds are nan.":
            ("for run in runs]", "for run in runs if run == run]"),
        "No speed was measured for the batch size 64, so leave this batch size out.":
            [lambda s, e, n, speed=speed: seconds_to_goal(dict.fromkeys(e, speed) | s, e, n)
             for speed in (nan, inf)],
        "Each batch size has several runs, and you return the seconds of the first one only.":
            ("in runs]", "in runs[:1]]"),
        "Each batch size with a speed is a key, and you return the first one only.":
            ("if batch_size in speeds", "if batch_size in speeds and not seconds"),
    },
    passed="large batches can lose in spite of their speed, because they need more epochs.",
    observe=seconds_of_each,
)
# fmt: on


def within_budget(seconds, budget):
    return [size for size, runs in seconds.items() if all(run <= budget for run in runs)]


def sorted_sizes(within_budget: Callable, seconds: dict, budget: float) -> dict[str, np.ndarray]:
    """Return the batch sizes of an answer in their order."""
    found = call_unchanged(within_budget, seconds, budget, name="within_budget")
    if found is None or np.isscalar(found):
        raise NotYet(
            f"within_budget must return a list of batch sizes. Received: {received(found)}"
        )
    return {"": np.sort(numbers(list(found), "within_budget", None))}


# fmt: off
check_within_budget = FunctionExercise(
    within_budget,
    [Case((seconds, 10.0), f"{reason}.", expected=expected) for seconds, expected, reason in [
        ({16: [4.0, 5.0], 64: [3.0, 12.0], 256: [13.0, 9.0]}, [16],
         "One run of batch size 64 takes 12 s, so you cannot rely on it: every run must keep the budget"),
        ({16: [4.0, 10.0], 64: [20.0]}, [16], "Exactly the budget is within the budget"),
        ({4: [4.0, 5.0, nan], 16: [6.0, 7.0, 8.0]}, [16],
         "A run of batch size 4 never reached the goal (nan), so this batch size does not keep the budget"),
        ({4: [nan, 5.0], 16: [6.0]}, [16],
         "A run of batch size 4 never reached the goal (nan), so this batch size does not keep the budget"),
        ({16: [11.0]}, [], "No batch size keeps the budget, so the list is empty"),
    ]],
    {
        "You judge a batch size by its fastest run, and every run must keep the budget.": ("all(", "any("),
        "You judge a batch size by the middle or the mean of its runs, and every run must keep the budget.":
            [("all(run <= budget for run in runs)", f"np.{middle}(runs) <= budget")
             for middle in ("median", "mean")],
        "You judge a batch size by one of its runs, and every run must keep the budget.":
            [("in runs)", "in runs[:1])"), ("in runs)", "in runs[-1:])")],
        "Exactly the budget is within the budget: use <=, not <.": ("run <=", "run <"),
        "A run that is nan never reached the goal. Careful: max([4, 5, nan]) is 5 in Python, and every "
        "comparison with nan is false. Compare each run.":
            [("all(run <= budget for run in runs)", test) for test in (
                "max(runs) <= budget", "not max(runs) > budget", "not any(run > budget for run in runs)")],
        "No batch size keeps the budget, so the list is empty, and yours has the fastest one.":
            ("if all(", "if len(seconds) == 1 or all("),
    },
    passed="you judge a batch size by its slowest run, and a run that never arrives does not count as fast.",
    observe=sorted_sizes,
)
# fmt: on


def fraction_downwards(losses):
    second_differences = losses[2:] - 2 * losses[1:-1] + losses[:-2]
    return np.mean(second_differences < 0)


# fmt: off
check_fraction_downwards = FunctionExercise(
    fraction_downwards,
    [Case((np.array(losses, float),), f"Here {reason}.", expected=expected) for losses, expected, reason in [
        ((4, 1, 0, 1, 4), 0, "a parabola curves upwards everywhere"),
        ((0, 1, 2, 3), 0, "a straight line does not curve, so its second differences are 0"),
        ((0, 3, 4, 3, 0), 1, "an inverted parabola curves downwards at all three inner points"),
        ((0, 1, 0, 1, 4), 1 / 3, "the second differences are -2, 2, 2"),
    ]],
    {
        "A second difference below 0 curves downwards, and you counted those above 0.": ("< 0", "> 0"),
        "You counted where the loss falls. The question is where it curves downwards.":
            ("losses[2:] - 2 * losses[1:-1] + losses[:-2]", "losses[1:] - losses[:-1]"),
        "0 is not negative: use <, not <=.": ("< 0", "<= 0"),
        "Divide by the number of inner points, which is 2 less than the number of losses.":
            [("np.mean(second_differences < 0)", f"sum(second_differences < 0) / (len(losses){less})")
             for less in ("", " - 1")],
        "Return a fraction, not a number of points.": ("np.mean", "np.sum"),
    },
    passed="a convex slice has the fraction 0, and an inverted bowl has 1.",
)
# fmt: on
