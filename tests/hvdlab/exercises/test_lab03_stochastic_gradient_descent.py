"""The checks of lab 3 take the right answers, and name what is wrong with the usual others."""

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises.lab03_stochastic_gradient_descent import check_batches, check_reached

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)


def batches(order, batch_size):
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def reached(accuracies, goal, patience):
    return len(accuracies) >= patience and all(a >= goal for a in accuracies[-patience:])


def test_right_answers_pass(capsys):
    check_batches(batches)
    check_batches(lambda order, batch_size: list(batches(order, batch_size)))
    check_batches(one_list_again)
    check_reached(reached)
    check_reached(lambda a, goal, patience: len(a) >= patience and min(a[-patience:]) >= goal)
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


def counts_in_a_row(accuracies, goal, patience):
    run = 0
    for accuracy in accuracies:
        run = run + 1 if accuracy >= goal else 0
    return run == patience


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


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
