"""Checks of lab 3: the batcher, and the rule that ends a training run."""

from collections.abc import Callable
from copy import copy
from itertools import islice

import numpy as np

from hvdlab.exercises import NotYet, call, check_yes_or_no, exercise, right

MAX_LISTED_SIZES = 6
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
    right("each of 100 indices once and in order, in batches of 1, 25, 32 (a tail of 4) and 100.")


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
        f"{len(STOP_RULE)} histories: consecutive, not total; each, not their mean; at least the goal."
    )


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
