"""Answers of lab 3 that are not of the form that an exercise asks for get a sentence of their own."""

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises.lab03_networks import check_seconds_to_goal, check_within_budget
from hvdlab.exercises.lab03_stochastic_gradient_descent import (
    batches,
    check_batches,
    check_descend,
    descend,
)


def returns_the_first(order, size):
    for start in range(0, len(order), size):
        return order[start : start + size]


def endless(order, size):
    while True:
        yield order[:size]


def fails(order, size):
    yield order[:size] / 0
    yield 1 // 0


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (check_batches, lambda order, size: order, "single indices.*`yield` each"),
        (check_batches, returns_the_first, "single indices.*Did you `return` a batch"),
        (check_batches, lambda *a: [list(batches(*a))], "1-D array of indices.*one at a time"),
        (check_batches, lambda *a: enumerate(batches(*a)), "1-D array of indices"),
        (check_batches, lambda *a: map(tuple, batches(*a)), "yours is a tuple.*row 1, column 2"),
        (check_batches, lambda *a: 3, "batches to loop over: `yield` each. Yours gives 3"),
        (check_batches, lambda *a: None, "returns nothing"),
        (check_batches, endless, "where does your loop end"),
        (check_batches, fails, "ZeroDivisionError.*, in `yield 1 // 0`"),
        (check_descend, lambda *a: descend(*a)[:, 0], r"The shape of yours is \(3,\)"),
        (check_seconds_to_goal, lambda *a: [1.0], "must return a dict"),
        (check_within_budget, lambda seconds, budget: min(seconds), "must return a list"),
        (check_within_budget, lambda *a: np.array(16), "the check cannot use this answer"),
    ],
)
def test_another_form_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)


def test_a_generator_that_is_not_written_yet_says_so_itself():
    def generator(order, batch_size):
        raise NotImplementedError("Lab 3, exercise 1: ...")
        yield

    with pytest.raises(NotImplementedError, match="Lab 3, exercise 1"):
        check_batches(generator)
