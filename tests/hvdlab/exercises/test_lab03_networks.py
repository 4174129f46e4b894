"""The checks of lab 3 on networks take the right answers, and name what is wrong with the usual others."""

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises.lab03_networks import (
    check_forward,
    check_fraction_downwards,
    check_reached,
    check_seconds_to_goal,
    check_within_budget,
)

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)


def reached(accuracies, goal, patience):
    return len(accuracies) >= patience and all(a >= goal for a in accuracies[-patience:])


def forward(network, inputs, last=0, before_bias=False, without_bias=False):
    for number, (weights, bias) in enumerate(network):
        inputs = inputs @ weights
        inside = number < len(network) - 1 + last
        if before_bias and inside:
            inputs = np.maximum(inputs, 0)
        if not without_bias:
            inputs = inputs + bias
        if inside and not before_bias:
            inputs = np.maximum(inputs, 0)
    return inputs


def seconds_to_goal(speeds, epochs, images):
    return {
        size: [images * run / speeds[size] for run in runs]
        for size, runs in epochs.items()
        if size in speeds
    }


def within_budget(seconds, budget):
    return [size for size, runs in seconds.items() if all(run <= budget for run in runs)]


def fraction_downwards(losses):
    return np.mean(np.diff(losses, 2) < 0)


def test_right_answers_pass(capsys):
    check_reached(reached)
    check_reached(lambda a, goal, patience: len(a) >= patience and min(a[-patience:]) >= goal)
    check_forward(forward)
    check_seconds_to_goal(seconds_to_goal)
    check_seconds_to_goal(
        lambda s, e, n: {k: np.array(v) for k, v in seconds_to_goal(s, e, n).items()}
    )
    check_within_budget(within_budget)
    check_within_budget(
        lambda s, budget: [
            k for k, v in s.items() if not np.max(v) > budget and not np.isnan(v).any()
        ]
    )
    check_fraction_downwards(fraction_downwards)
    assert capsys.readouterr().out.count("Right:") == 8


def counts_in_a_row(accuracies, goal, patience):
    run = 0
    for accuracy in accuracies:
        run = run + 1 if accuracy >= goal else 0
    return run == patience


def takes_them_away(accuracies, goal, patience):
    for _ in range(patience):
        if not accuracies or not accuracies.pop() >= goal:
            return False
    return True


def turns_them_round(accuracies, goal, patience):
    accuracies.reverse()
    return reached(accuracies[:patience], goal, patience)


MISTAKES[check_reached] = [
    (lambda a, goal, patience: sum(x >= goal for x in a) >= patience, "not consecutive"),
    (lambda a, goal, patience: bool(a) and a[-1] >= goal, "the patience is 2"),
    (lambda a, goal, patience: all(x >= goal for x in a[-patience:]), "nothing is measured"),
    (lambda a, goal, patience: len(a) >= patience and all(x > goal for x in a[-patience:]),
     "exactly the goal"),
    (lambda a, goal, patience: len(a) >= patience and np.mean(a[-patience:]) >= goal,
     "only the last of two|each must be"),
    (lambda a, goal, patience: len(a) >= patience and min(a[-2:]) >= goal, "with a patience of 1"),
    (lambda a, goal, patience: len(a) > patience and all(x >= goal for x in a[-patience:]),
     "two epochs are enough"),
    (lambda a, goal, patience: len(a) >= 2 and all(x >= goal for x in a[-patience:]),
     "with a patience of 1|the patience is 3"),
    (counts_in_a_row, "more than two in a row"),
    (takes_them_away, "takes_them_away changes what it is given"),
    (turns_them_round, "turns_them_round changes what it is given"),
    (lambda a, goal, patience: None, "True or False"),
    (lambda a, goal, patience: a[-1] >= goal, "raises IndexError"),
]  # fmt: skip


MISTAKES[check_forward] = [
    (lambda network, x: forward(network, x, last=-9), "ReLU is missing"),
    (lambda network, x: forward(network, x, before_bias=True), "Add the bias before the ReLU"),
    (lambda network, x: forward(network, x, without_bias=True), "biases are missing"),
    (lambda network, x: forward(network, x, last=1), "last layer has no ReLU"),
    (lambda network, x: forward([network[0], network[-1]], x) if len(network) > 1 else x @ [[0], [0]],
     "loop over them"),
    (lambda network, x: forward(network, x) if len(network) > 1 else forward(network, x, last=1) * 0,
     "single layer is the last layer"),
    (lambda network, x: forward(network, x[:1]), "shape"),
    (lambda network, x: None, "is `return` missing"),
]  # fmt: skip


def of_each(formula):
    return lambda speeds, epochs, images: {
        size: [formula(images, run, speeds[size], size) for run in runs]
        for size, runs in epochs.items()
        if size in speeds
    }


MISTAKES[check_seconds_to_goal] = [
    (of_each(lambda n, e, s, b: e / s), "multiply by their number"),
    (of_each(lambda n, e, s, b: n * e * s), "divide by it"),
    (of_each(lambda n, e, s, b: n / s), "number of epochs is missing"),
    (of_each(lambda n, e, s, b: n * e / s / b), "do not use the batch size"),
    (of_each(lambda n, e, s, b: n * e / s * b), "do not use the batch size"),
    (of_each(lambda n, e, s, b: n * np.nan_to_num(e) / s), "must be nan, too"),
    (of_each(lambda n, e, s, b: 1.0), "take 20 s"),
    (lambda s, e, n: [1.0], "must return a dict"),
    (lambda s, e, n: {**seconds_to_goal(s, e, n), 64: [0.0]}, "No speed was measured"),
    (lambda s, e, n: {8: seconds_to_goal(s, e, n)[8]}, "keys 8 and 32"),
    (lambda s, e, n: {k: v[:1] for k, v in seconds_to_goal(s, e, n).items()}, "seconds of batch size 8"),
    (lambda s, e, n: {k: [n * run / s[k] for run in v] for k, v in e.items()}, "raises KeyError"),
]  # fmt: skip


MISTAKES[check_within_budget] = [
    (lambda s, budget: [k for k, v in s.items() if min(v) <= budget], "every run must keep the budget"),
    (lambda s, budget: [k for k, v in s.items() if np.median(v) <= budget], "every run must keep"),
    (lambda s, budget: [k for k, v in s.items() if max(v) < budget], "exactly the budget"),
    (lambda s, budget: [k for k, v in s.items() if max(v) <= budget], r"never reached.*max\(\[4, 5, nan\]\)"),
    (lambda s, budget: [k for k, v in s.items() if not max(v) > budget], "never reached"),
    (lambda s, budget: [k for k, v in s.items() if v[-1] <= budget], "every run must keep|nan"),
    (lambda s, budget: min(s), "must return a list"),
    (lambda s, budget: None, "must return a list"),
    (lambda s, budget: within_budget(s, budget) or [16], "the list is empty"),
]  # fmt: skip


MISTAKES[check_fraction_downwards] = [
    (lambda losses: np.mean(np.diff(losses, 2) > 0), "counted those above 0"),
    (lambda losses: np.mean(np.diff(losses) < 0), "where the loss falls"),
    (lambda losses: np.mean(np.diff(losses, 2) <= 0), "use <, not <="),
    (lambda losses: np.sum(np.diff(losses, 2) < 0) / len(losses), "number of inner points"),
    (lambda losses: np.sum(np.diff(losses, 2) < 0), "not a number of points"),
    (lambda losses: np.diff(losses, 2) < 0, "one number"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
