"""The checks of lab 3 take the right answers, and name what is wrong with the usual others."""

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises.lab03_stochastic_gradient_descent import (
    check_batches,
    check_descend,
    check_noise_variance,
)

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)


def batches(order, batch_size):
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def test_right_answers_pass(capsys):
    check_batches(batches)
    check_batches(lambda order, batch_size: list(batches(order, batch_size)))
    check_batches(one_list_again)
    check_descend(sgd)
    check_noise_variance(variance)
    assert capsys.readouterr().out.count("Right:") == 5


def test_a_generator_that_is_not_written_yet_says_so_itself():
    def generator(order, batch_size):
        raise NotImplementedError("Lab 3, exercise 1: ...")
        yield

    with pytest.raises(NotImplementedError):
        check_batches(generator)


def one_list_again(order, size):
    batch = []
    for index in order:
        batch.append(index)
        if len(batch) == size:
            yield batch
            batch.clear()
    if batch:
        yield batch


def whole(order, size):
    """Without the tail."""
    return [order[i * size : (i + 1) * size] for i in range(len(order) // size)]


def padded(order, size):
    """The tail filled up from the start, as many samplers do."""
    count = -(-len(order) // size)
    return np.resize(order, count * size).reshape(count, size)


def tail_starts_early(order, size):
    """The last `size` indices as the tail: full, but partly read twice."""
    found = whole(order, size)
    return found + [order[-size:]] if len(order) % size else found


def tail_first(order, size):
    tail = len(order) % size
    return ([order[:tail]] if tail else []) + whole(order[tail:], size)


def one_too_large(order, size):
    found = whole(order, size)
    if len(order) % size:
        found[-1] = np.concatenate([found[-1], order[-(len(order) % size) :]])
    return found


def returns_the_first(order, size):
    for start in range(0, len(order), size):
        return order[start : start + size]


def all_at_once(order, size):
    yield list(batches(order, size))


def endless(order, size):
    while True:
        yield order[:size]


MISTAKES[check_batches] = [
    (whole, "last batch is dropped: 100 indices, batch_size=32 covers 96"),
    (lambda order, size: [order[i * size :][:size] for i in range(len(order) // size + 1)],
     "empty.*100 indices, batch_size=1 "),
    (padded, "28 indices come twice"),
    (tail_starts_early, "28 indices come twice"),
    (lambda order, size: [order[:-1][i : i + size] for i in range(0, len(order), size)],
     "very last index is missing"),
    (lambda order, size: batches(np.arange(len(order)), size), "positions 0, 1, 2"),
    (lambda order, size: batches(np.random.default_rng(0).permutation(order), size),
     "not in the order given"),
    (tail_first, "only the last may be shorter"),
    (one_too_large, "batch of 36 is larger than batch_size"),
    (lambda order, size: [np.random.default_rng(0).choice(order, size)] * -(-len(order) // size),
     "come twice"),
    (lambda order, size: [order[i : i + size] for i in range(len(order))], "come twice"),
    (endless, "where does your loop end"),
    (lambda order, size: None, "returns nothing"),
    (lambda order, size: order, "single indices.*`yield` each"),
    (returns_the_first, "single indices.*Did you `return` a batch"),
    (all_at_once, "1-D array of indices.*one at a time"),
    (lambda order, size: enumerate(batches(order, size)), "1-D array of indices"),
    (lambda order, size: map(tuple, batches(order, size)), "yours is a tuple.*row 1, column 2"),
    (lambda order, size: 3, "batches to loop over: `yield` each. Yours gives 3"),
    (lambda order, size: order / 0.0 // [1, 2], "raises ValueError"),
    (lambda order, size: [order[:size] + 1000], "not in order"),
]  # fmt: skip


def sgd(
    x,
    y,
    batch_size,
    rate,
    epochs,
    *,
    order=None,
    share=False,
    divide=True,
    sequential=False,
    start=True,
):
    rng = np.random.default_rng(1)
    w, b = 0.0, 18.0
    path = [(w, b)] if start else []
    for epoch in range(epochs):
        numbers = rng.permutation(len(x)) if order is None else order(rng, len(x), epoch)
        for chosen in batches(numbers, batch_size):
            if share:
                chosen = slice(None)
            errors = w * x[chosen] + b - y[chosen]
            count = len(x[chosen]) if divide else 1
            dw, db = 2 * sum(errors * x[chosen]) / count, 2 * sum(errors) / count
            w = w - rate * dw
            if sequential:
                db = 2 * np.mean(w * x[chosen] + b - y[chosen])
            b = b - rate * db
            path.append((w, b))
    return np.array(path)


MISTAKES[check_descend] = [
    (lambda *a: sgd(*a, start=False), "must return 13 rows"),
    (lambda x, y, size, rate, epochs: sgd(x, y, size, rate, 1), "must return 13 rows"),
    (lambda *a: sgd(*a, order=lambda rng, n, epoch: np.random.default_rng(1).permutation(n)),
     "same order: draw a new permutation"),
    (lambda *a: sgd(*a, order=lambda rng, n, epoch: rng.integers(n, size=n)),
     "must use each of the examples 0 to 5 once"),
    (lambda *a: sgd(*a, share=True), r"must use each.*Yours uses \[0, 0, 0"),
    (lambda *a: sgd(*a, divide=False), "sum of the gradients; the mean is needed"),
    (lambda *a: sgd(*a, sequential=True), "at the old w and b"),
    (lambda *a: sgd(*a)[:, 0], "shape of yours"),
    (lambda *a: None, "is `return` missing"),
]  # fmt: skip


def variance(
    x, y, rate, size, factor=2.0, curvature_factor=2.0, two=2.0, noise=np.square, inputs=None
):
    w, b = np.polyfit(x, y, 1)
    inputs = x if inputs is None else inputs
    c = np.mean(noise(factor * (w * x + b - y) * inputs))
    curvature = curvature_factor * np.mean(x**2)
    return rate * c / (curvature * (two - rate * curvature * (two > 0)) * size)


MISTAKES[check_noise_variance] = [
    (lambda x, y, rate, size: variance(x, y, rate, 1), "divide by the batch size"),
    (lambda x, y, rate, size: variance(x, y, rate, size**0.5), "not by its square root"),
    (lambda *a: variance(*a, factor=1.0), "gradients 2 e x: the factor 2 is missing"),
    (lambda *a: variance(*a, curvature_factor=1.0), "squares of x: the factor 2"),
    (lambda *a: variance(*a, noise=lambda g: g), "square of the mean"),
    (lambda *a: variance(*a, noise=abs), "absolute values"),
    (lambda x, y, rate, size: variance(x, y, rate, size, inputs=np.ones(3)), "Yours is that of b"),
    (lambda x, y, rate, size: rate * 2 / size, "left out the factor 2 - learning rate"),
    (lambda x, y, rate, size: 7.0, "so C = 8/3"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
