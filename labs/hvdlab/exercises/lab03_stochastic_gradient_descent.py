"""Checks of lab 3, one neuron: the batches, SGD, and the variance of the noise ball."""

from collections.abc import Callable
from copy import copy
from itertools import combinations, islice, pairwise

import numpy as np

from hvdlab.exercises import (
    NotYet,
    call,
    call_unchanged,
    compare,
    exercise,
    number,
    numbers,
    right,
    shown,
)

MAX_LISTED_SIZES = 6
RATE = 0.02
SIX_EXAMPLES = np.array([-3.0, -1.5, -0.25, 0.5, 1.25, 3.0]), np.array([1.0, 7.0, -2, 4.5, 11, 3])


@exercise
def check_batches(batches: Callable) -> None:
    """Demand each index exactly once, in the given order, batch_size at a time.

    The last batch may be shorter. The cases are 100 indices in a shuffled order with batches of 32 (the last
    has 4), 1, 100 and 25 (all are full), and a single index.

    Args:
        batches: The learner's `batches(order, batch_size)`, a generator of arrays of indices.
    """
    rng = np.random.default_rng(1)
    for n, batch_size in ((100, 32), (100, 1), (100, 100), (100, 25), (1, 1)):
        order = rng.permutation(n)
        found = _batches(batches, order, batch_size)
        case = f"{n} indices, batch_size={batch_size}"
        sizes = [len(batch) for batch in found]
        read = np.concatenate([np.empty(0, int), *found])
        if 0 in sizes:
            raise NotYet(
                f"One of your batches is empty ({case} gives the sizes {_list(sizes)}): where batch_size "
                "divides the number of indices there is no tail."
            )
        if max(sizes, default=0) > batch_size:
            raise NotYet(f"A batch of {max(sizes)} is larger than batch_size ({case}).")
        _check_coverage(read, order, sizes, case, n // batch_size * batch_size)
        expected = [batch_size] * (n // batch_size) + [n % batch_size] * (n % batch_size > 0)
        if sizes != expected:
            raise NotYet(
                f"The sizes of your batches are {_list(sizes)} ({case}): they must be "
                f"{_list(expected)}, only the last may be shorter."
            )
    right(
        "every example comes exactly once per epoch, also when the batch size does not divide their number."
    )


@exercise
def check_descend(descend: Callable) -> None:
    """Demand SGD: one step per batch, each example once per epoch, in a new order for each epoch.

    The check finds out from the path which examples made each step.

    Args:
        descend: The learner's `descend(x, y, batch_size, learning_rate, epochs)`.
    """
    for batch_size in (1, 6, 4):
        case = f"descend with 6 examples, batch_size={batch_size}, epochs=2"
        answer = call_unchanged(descend, *SIX_EXAMPLES, batch_size, RATE, 2)
        path = numbers(answer, case, None)
        per_epoch = -(-6 // batch_size)
        if path.shape != (2 * per_epoch + 1, 2):
            raise NotYet(
                f"{case} must return {2 * per_epoch + 1} rows (w, b): the start, and one for each of "
                f"{per_epoch} steps in each of 2 epochs. The shape of yours is {path.shape}."
            )
        steps = [_examples_of(*pair, case) for pair in pairwise(path)]
        epochs = steps[:per_epoch], steps[per_epoch:]
        for number_of_epoch, made in enumerate(epochs, 1):
            read = sorted(index for step in made for index in step)
            if read != list(range(6)):
                raise NotYet(
                    f"{case}: epoch {number_of_epoch} must use each of the examples 0 to 5 once. Yours "
                    f"uses {read}."
                )
        if batch_size == 1 and epochs[0] == epochs[1]:
            raise NotYet(
                "Both epochs read the examples in the same order: draw a new permutation for each epoch."
            )
    right(
        "each batch makes one step with the gradient of its own examples, and every epoch has a new order."
    )


def _examples_of(before: np.ndarray, after: np.ndarray, case: str) -> tuple[int, ...]:
    """Return the numbers of the examples whose mean gradient made a step."""
    x, y = SIX_EXAMPLES
    w, b = before
    errors = w * x + b - y
    gradients = 2 * np.stack([errors * x, errors], axis=1)
    for size in range(1, 7):
        for chosen in combinations(range(6), size):
            if np.allclose(before - RATE * gradients[list(chosen)].mean(axis=0), after, atol=1e-9):
                return chosen
    everything = before - RATE * gradients.sum(axis=0)
    added = (
        " It is the sum of the gradients; the mean is needed."
        if np.allclose(everything, after)
        else ""
    )
    raise NotYet(
        f"{case}: the step from {shown(before)} to {shown(after)} is not minus the learning rate times the "
        f"mean gradient of some of the examples. Compute both derivatives at the old w and b, from x[chosen] "
        f"and y[chosen].{added}"
    )


@exercise
def check_noise_variance(noise_variance: Callable) -> None:
    """Demand eta C / (lambda (2 - eta lambda) B) for x = (-1, 0, 1), y = (0, 3, 0).

    Args:
        noise_variance: The learner's `noise_variance(x, y, learning_rate, batch_size)`.
    """
    x, y = np.array([-1.0, 0.0, 1.0]), np.array([0.0, 3.0, 0.0])
    c, curvature = 8 / 3, 4 / 3  # the best line is w=0, b=1, and its errors are 1, -2, 1
    for rate, batch_size in ((0.5, 1), (0.5, 4), (0.25, 1)):
        case = f"noise_variance(x=(-1, 0, 1), y=(0, 3, 0), learning_rate={rate}, batch_size={batch_size})"
        answer = number(call_unchanged(noise_variance, x, y, rate, batch_size), case)
        half = rate * curvature
        mistakes = {
            "The noise of a mean over B examples has the variance C / B: divide by the batch size.":
                rate * c / (curvature * (2 - half)),
            "Divide by the batch size itself, not by its square root.":
                rate * c / (curvature * (2 - half) * batch_size**0.5),
            "C is the mean of the squared gradients 2 e x: the factor 2 is missing.":
                rate * c / 4 / (curvature * (2 - half) * batch_size),
            "C is the mean of the squares, and yours is the square of the mean, which is 0 at the minimum.":
                0.0,
            "The curvature is 2 times the mean of the squares of x: the factor 2 is missing.":
                rate * c / (curvature / 2 * (2 - half / 2) * batch_size),
            "You left out the factor 2 - learning rate * curvature.": rate * c / (curvature * batch_size),
            "Use the squared gradient of w, 2 e x. Yours is that of b.": rate * 8 / (
                curvature * (2 - half) * batch_size
            ),
            "C contains the squares of the gradients, and you took their absolute values.":
                rate * 4 / 3 / (curvature * (2 - half) * batch_size),
        }  # fmt: skip
        expected = rate * c / (curvature * (2 - half) * batch_size)
        if batch_size == 1:
            mistakes = dict(list(mistakes.items())[2:])
        reason = "The best line is w=0, b=1, its errors are (1, -2, 1), so C = 8/3 and the curvature 4/3."
        compare(case, answer, expected, mistakes, reason)
    right("four times the batch gives a quarter of the variance, because the noise is averaged.")


def _check_coverage(
    read: np.ndarray, order: np.ndarray, sizes: list[int], case: str, whole: int
) -> None:
    """Raise NotYet with the likely mistake unless every index comes exactly once and in order.

    Args:
        read: The indices of all batches.
        order: The indices that were passed.
        sizes: The size of each batch.
        case: The case, for the message.
        whole: How many indices are in full batches.
    """
    n = len(order)
    missing, distinct = np.setdiff1d(order, read), len(np.unique(read))
    if np.setdiff1d(read, order).size:
        raise NotYet(
            f"Your batches hold {np.setdiff1d(read, order)[0]}, which is not in order ({case})."
        )
    if np.array_equal(np.sort(read), np.arange(n)):
        if np.array_equal(read, order):
            return
        if np.array_equal(read, np.arange(n)):
            raise NotYet(
                f"Your batches hold positions 0, 1, 2, ... ({case}): yield order[start:stop], the "
                "shuffled indices at these positions."
            )
        raise NotYet(
            f"Each index comes once, but not in the order given ({case}): do not sort or shuffle."
        )
    if len(read) > distinct:
        raise NotYet(
            f"{len(read) - distinct} indices come twice: {case} gives {len(read)} indices, "
            f"{distinct} of them distinct. Where does the next batch start?"
        )
    if n > whole and distinct == whole:
        raise NotYet(f"Your last batch is dropped: {case} covers {distinct}.")
    if sum(sizes) == n - 1 and order[-1] in missing:
        raise NotYet(f"The very last index is missing ({case}): a slice's end is not included.")
    raise NotYet(f"{len(missing)} of {n} indices are missing ({case} covers {distinct}).")


def _batches(batches: Callable, order: np.ndarray, batch_size: int) -> list[np.ndarray]:
    answer = call(batches, order.copy(), batch_size)
    if answer is None:
        raise NotYet("batches returns nothing: use `yield`, once for each batch.")
    if not hasattr(answer, "__iter__"):
        raise NotYet(
            f"batches must give batches to loop over: `yield` each. Yours gives {answer!r}."
        )
    # Copied one by one, as a loop uses them: a generator may yield the same list with other indices.
    found = call(list, map(copy, islice(answer, len(order) + 2)), name="batches")
    if len(found) > len(order) + 1:
        raise NotYet(
            f"More batches than indices ({len(order)} indices, batch_size={batch_size}): where does "
            "your loop end?"
        )
    for batch in found:
        if np.isscalar(batch) and batch in order:
            raise NotYet(
                f"batches gives single indices, {batch} for one. Did you `return` a batch? `yield` each."
            )
        if not _is_batch(batch):
            raise NotYet(
                "Each batch must be a 1-D array of indices, a slice of order, and `yield` gives one at a "
                f"time. Yours: {batch!r}."
            )
        if isinstance(batch, tuple):
            raise NotYet(
                "A batch must be an array of indices, and yours is a tuple: NumPy reads x[(1, 2)] as row 1, "
                "column 2. Yield order[start:stop]."
            )
    return [np.asarray(batch) for batch in found]


def _is_batch(batch: object) -> bool:
    try:
        array = np.asarray(batch)
    except ValueError:  # a list of arrays that differ in length
        return False
    return array.ndim == 1 and (not len(array) or np.issubdtype(array.dtype, np.integer))


def _list(sizes: list[int]) -> str:
    """Return the first sizes as text, with dots for the others."""
    return ", ".join(map(str, sizes[:MAX_LISTED_SIZES])) + (
        ", ..." if len(sizes) > MAX_LISTED_SIZES else ""
    )
