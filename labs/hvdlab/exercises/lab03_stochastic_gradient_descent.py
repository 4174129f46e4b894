"""Exercises of lab 3, one neuron: batches, SGD, patches of its loop, and the variance of the noise ball."""

import warnings
from collections.abc import Callable
from copy import copy
from itertools import islice, pairwise

import numpy as np

from hvdlab.exercises import NotYet, call, call_unchanged, numbers, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.patch_review import PatchReview
from hvdlab.exercises.lab02_gradient_descent import array, gradient

RATE = 0.02
SIX_EXAMPLES = array(-3.0, -1.5, -0.25, 0.5, 1.25, 3.0), array(1.0, 7.0, -2, 4.5, 11, 3)


def batches(order, batch_size):
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def sizes_and_indices(batches: Callable, order: np.ndarray, batch_size: int) -> dict[str, object]:
    """Return the size of each batch, and the indices of all batches."""
    found = call_unchanged(all_batches, batches, order, batch_size, name="batches")
    for batch in found:
        if np.isscalar(batch) and batch in order:
            raise NotYet(
                f"batches gives single indices, {batch} for one. Did you `return` a batch? `yield` each."
            )
        if not is_batch(batch):
            raise NotYet(
                "Each batch must be a 1-D array of indices, a slice of order, and `yield` gives one at a "
                f"time. Yours: {received(batch)}."
            )
        if isinstance(batch, tuple):
            raise NotYet(
                "A batch must be an array of indices, and yours is a tuple: NumPy reads x[(1, 2)] as row 1, "
                "column 2. Yield order[start:stop]."
            )
    return {
        "The list of the batch sizes of": np.array([len(batch) for batch in found]),
        "The list of all indices of": np.concatenate([[], *found]),
    }


def is_batch(batch: object) -> bool:
    try:
        array = np.asarray(batch)
    except ValueError:  # a list of arrays that differ in length
        return False
    return array.ndim == 1 and (not array.size or array.dtype.kind in "iu")


def all_batches(batches: Callable, order: np.ndarray, batch_size: int) -> list:
    """Return what a learner's function yields, copied one by one: it may yield the same list again."""
    answer = call(batches, order, batch_size)
    if answer is None:
        raise NotYet("batches returns nothing: use `yield`, once for each batch.")
    if not hasattr(answer, "__iter__"):
        raise NotYet(
            f"batches must give batches to loop over: `yield` each. Yours gives {received(answer)}."
        )
    found = list(map(copy, islice(answer, len(order) + 2)))
    if len(found) > len(order) + 1:
        raise NotYet(
            f"batches gives more batches than indices ({len(order)} indices, batch_size={batch_size}): where "
            "does your loop end?"
        )
    return found


# fmt: off
check_batches = FunctionExercise(
    batches,
    [Case((np.array(order), batch_size), reason) for order, batch_size, reason in [
        ((5, 2, 0, 6, 3, 1, 4), 3, "Yield every index once, in its order: do not sort or shuffle, and let "
         "the last batch be shorter."),
        ((5, 2, 0, 6, 3, 1, 4), 1, "Each index is a batch."),
        ((5, 2, 0, 6, 3, 1, 4), 7, "All indices are one batch."),
        ((4, 2, 5, 0, 3, 1), 3, "All batches are full."),
        ((0,), 1, "The only index is the only batch."),
        ((7, 3, 9, 5, 8), 2, "Yield the numbers in order, whatever they are."),
    ]],
    {
        "Your last batch is dropped: it may be shorter, and it counts.":
            ("len(order)", "len(order) // batch_size * batch_size"),
        "One of your batches is empty: where batch_size divides the number of indices there is no tail.":
            ("len(order)", "len(order) + 1"),
        "Indices come twice: you filled the last batch up with those of the start.":
            lambda order, size: np.resize(order, -(-len(order) // size) * size).reshape(-1, size),
        "Indices come twice: your last batch begins before the end of the batch before it.":
            ("[start :", "[min(start, len(order) - batch_size) :"),
        "Indices come twice: the next batch must start batch_size further.":
            ("len(order), batch_size", "len(order)"),
        "The very last index is missing: the stop of a slice is not included.":
            [("yield order", "yield order[:-1]"),
             ("len(order)", "len(order) - 1", "yield order", "yield order[:-1]")],
        "An index between two batches is missing: the stop of a slice is not included.":
            ("start + batch_size", "start + batch_size - 1"),
        "Your batches hold positions 0, 1, 2, ...: yield order[start:stop], the shuffled indices at these "
        "positions.": ("yield order", "yield np.arange(len(order))"),
        "Each index comes once, but not in the order given: do not sort or shuffle.":
            [("yield order", "yield np.sort(order)"), ("yield order", "yield order[::-1]")],
        "Only the last batch may be shorter, and yours is the first.":
            lambda order, size: [order[max(stop - size, 0):stop]
                                 for stop in range((len(order) - 1) % size + 1, len(order) + 1, size)],
        "A batch is larger than batch_size: the rest is a batch of its own.":
            lambda order, size: np.split(order, range(size, len(order) - size + 1, size)),
    },
    passed="every example comes exactly once per epoch, also when the batch size does not divide their "
    "number.",
    observe=sizes_and_indices,
)
# fmt: on


def descend(x, y, batch_size, learning_rate, epochs, seed=1):
    rng = np.random.default_rng(seed)
    w, b = 0.0, 18.0
    path = [(w, b)]
    for _ in range(epochs):
        for chosen in batches(rng.permutation(len(x)), batch_size):
            dw, db = gradient(w, b, x[chosen], y[chosen])
            w, b = w - learning_rate * dw, b - learning_rate * db
            path.append((w, b))
    return np.array(path)


def examples_of(
    before: np.ndarray, after: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[int, ...]:
    """Return the numbers of the examples whose mean gradient made a step; empty if there are none."""
    gradients = np.stack([gradient(*before, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    subsets = np.arange(1, 2 ** len(x))[:, None] >> np.arange(len(x)) & 1
    ends = before - RATE * subsets @ gradients / subsets.sum(axis=1, keepdims=True)
    (found,) = np.nonzero(np.isclose(ends, after, rtol=0, atol=1e-9).all(axis=1))
    return tuple(np.flatnonzero(subsets[found[0]])) if found.size else ()


def examples_of_each_epoch(descend: Callable, batch_size: int) -> dict[str, object]:
    """Return which of six examples a learner's function used in two epochs: its path shows this."""
    found = call_unchanged(descend, *SIX_EXAMPLES, batch_size, RATE, 2, name="descend")
    path = numbers(found, "descend", None)
    if path.ndim != 2 or path.shape[1] != 2:
        raise NotYet(
            "descend must return an array with one row (w, b) for the start and for each step. The shape of "
            f"yours is {path.shape}."
        )
    steps = -(-6 // batch_size)
    values = {"The number of rows of": len(path)}
    if len(path) != 2 * steps + 1:
        return values
    if batch_size == 6:
        values["The second row of"] = path[1]
    made = [examples_of(*pair, *SIX_EXAMPLES) for pair in pairwise(path)]
    values["The number of steps by the mean gradient of some examples, at the old w and b, in"] = (
        sum(map(bool, made))
    )
    for epoch, used in enumerate((made[:steps], made[steps:]), 1):
        name = f"How often epoch {epoch} uses each of the six examples in"
        values[name] = np.bincount([n for one in used for n in one], minlength=6)
    if batch_size == 1:
        values["The number of different orders in"] = len({tuple(made[:6]), tuple(made[6:])})
    return values


# fmt: off
check_descend = FunctionExercise(
    descend,
    [Case((batch_size,), reason, f"descend with 6 examples, batch_size={batch_size}, epochs=2")
     for batch_size, reason in [
        (6, "Each epoch has one step, so the rows are the start (0, 18) and one for each epoch. At the start "
         "the mean gradient is (-4, 27.83)."),
        (1, "Each epoch has six steps, uses each example once, and has a new order."),
        (4, "Each epoch has two steps, with four and two examples, and uses each example once."),
    ]],
    {
        "The start is the first row, and each step adds one.": ("path = [(w, b)]", "path = []"),
        "Append a row after every step, and not only after every epoch.":
            ("            path.append", "        path.append"),
        "Use the number of epochs that is passed.": ("range(epochs)", "range(1)"),
        "Both epochs read the examples in the same order: draw a new permutation for each epoch.":
            [("rng.permutation(len(x))", "np.random.default_rng(seed).permutation(len(x))"),
             ("rng.permutation(len(x))", "np.arange(len(x))")],
        "An epoch uses each example once: draw a permutation, and not a random number for each place.":
            ("rng.permutation(len(x))", "rng.integers(len(x), size=len(x))"),
        "Each step uses all examples: compute the gradient from x[chosen] and y[chosen].":
            ("x[chosen], y[chosen]", "x, y"),
        "Your step uses the sum of the gradients of a batch, and the mean is needed.":
            ("dw, db = gradient(w, b, x[chosen], y[chosen])",
             "dw, db = len(chosen) * np.array(gradient(w, b, x[chosen], y[chosen]))"),
        "Compute both derivatives at the old w and b, before you change one of them.":
            ("w, b = w - learning_rate * dw, b - learning_rate * db",
             "w = w - learning_rate * dw; b = b - learning_rate * gradient(w, b, x[chosen], y[chosen])[1]"),
        "The step must go against the gradient: subtract it.": ("- learning_rate", "+ learning_rate"),
        "The learning rate is missing.": ("learning_rate * d", "d"),
    },
    passed="each batch makes one step with the gradient of its own examples, and every epoch has a new "
    "order.",
    observe=examples_of_each_epoch,
)
# fmt: on


def wrong_step(descend: Callable, examples: int, batch_size: int, epochs: int) -> str:
    """Return which step or epoch breaks the promise of SGD, as a sentence; "" if none does."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=examples), rng.normal(size=examples)
    with warnings.catch_warnings(action="ignore"):  # the mean of no examples
        path, steps = descend(x, y, batch_size, RATE, epochs), -(-examples // batch_size)
    if len(path) != 1 + steps * epochs:
        return f"It makes {len(path) - 1} steps in place of {steps * epochs}."
    read = [examples_of(*pair, x, y) for pair in pairwise(path)]
    if () in read:
        return f"Step {read.index(()) + 1} is not the mean gradient of some examples."
    for epoch in range(epochs):
        counts = np.bincount(sum(read[epoch * steps :][:steps], ()), minlength=examples)
        if any(counts != 1):
            number = int(np.argmax(counts != 1))
            return f"Epoch {epoch + 1} reads example {number} {counts[number]} times."
    return ""


def unusable_numbers(examples: int, batch_size: int, epochs: int) -> str:
    if not (1 <= batch_size <= examples <= 10 and 1 <= epochs <= 5):
        return (
            "examples must be from 1 to 10, batch_size from 1 to examples, and epochs from 1 to 5. "
            f"Received: {examples}, {batch_size}, {epochs}"
        )
    return ""


# fmt: off
DESCEND_REVIEW = PatchReview(
    descend,
    {
        "a": ("            dw, db = gradient(w, b, x[chosen], y[chosen])",
              "            halves = np.array_split(chosen, 2)  # half the memory\n"
              "            dw, db = np.mean([gradient(w, b, x[half], y[half]) for half in halves], axis=0)"),
        "b": ("    for _ in range(epochs):", "    order = np.arange(len(x))\n    for _ in range(epochs):\n"
              "        rng.shuffle(order)  # changes order in place", "rng.permutation(len(x))", "order"),
        "c": ("for chosen in batches(rng.permutation(len(x)), batch_size):",
              "for _ in range(0, len(x), batch_size):\n"
              "            chosen = rng.choice(len(x), batch_size, replace=False)"),
        "d": ("            dw, db = gradient(w, b, x[chosen], y[chosen])",
              "            errors = w * x[chosen] + b - y[chosen]\n"
              "            dw = 2 * np.sum(errors * x[chosen]) / batch_size\n"
              "            db = 2 * np.sum(errors) / batch_size"),
    },
    wrong_step,
    example={"examples": 8, "batch_size": 8, "epochs": 2},
    tried=[{"examples": examples, "batch_size": size, "epochs": epochs} for examples, size, epochs in [
        (8, 8, 2), (8, 4, 2), (9, 3, 2), (10, 4, 1), (7, 1, 3), (1, 1, 1),
    ]],
    check_case=unusable_numbers,
)
# fmt: on


def review_descend():
    return {
        "a": {"examples": 9, "batch_size": 3, "epochs": 1},
        "b": "correct",
        "c": {"examples": 8, "batch_size": 4, "epochs": 1},
        "d": {"examples": 10, "batch_size": 4, "epochs": 1},
    }


check_review_descend = FunctionExercise(
    review_descend,
    [Case(())],
    observe=DESCEND_REVIEW.verdicts,
    passed="halves of unequal size need weights, batches that are drawn one by one overlap, and the last "
    "batch has a smaller divisor. A shuffle in place gives each epoch a new order.",
)


def noise_variance(x, y, learning_rate, batch_size):
    w, b = np.polyfit(x, y, 1)
    noise = np.mean((2 * (w * x + b - y) * x) ** 2)
    curvature = 2 * np.mean(x**2)
    return learning_rate * noise / (curvature * (2 - learning_rate * curvature) * batch_size)


# fmt: off
check_noise_variance = FunctionExercise(
    noise_variance,
    [Case((array(-1, 0, 1), array(*y), rate, batch_size), expected=expected,
          reason=f"The best line is w={w}, b=1, its errors are (1, -2, 1), so C = 8/3 and the curvature 4/3.")
     for w, y, rate, batch_size, expected in [
        (0, (0, 3, 0), 0.5, 1, 0.75), (0, (0, 3, 0), 0.5, 4, 0.1875), (0, (0, 3, 0), 0.25, 1, 0.3),
        (2, (-2, 3, 2), 0.5, 1, 0.75),
    ]],
    {
        "The noise of a mean over B examples has the variance C / B: divide by the batch size.":
            (" * batch_size)", ")"),
        "Divide by the batch size itself, not by its square root.": (" * batch_size)", " * batch_size**0.5)"),
        "C is the mean of the squared gradients 2 e x: the factor 2 is missing.": ("2 * (w", "(w"),
        "C is the mean of the squares, and yours is the square of the mean, which is 0 at the minimum.":
            ("np.mean((2 * (w * x + b - y) * x) ** 2)", "np.mean(2 * (w * x + b - y) * x) ** 2"),
        "The curvature is 2 times the mean of the squares of x: the factor 2 is missing.":
            ("2 * np.mean", "np.mean"),
        "You left out the factor 2 - learning rate * curvature.": (" * (2 - learning_rate * curvature)", ""),
        "Use the squared gradient of w, 2 e x. Yours is that of b.": ("- y) * x)", "- y))"),
        "C contains the squares of the gradients, and you took their absolute values.":
            ("(2 * (w * x + b - y) * x) ** 2", "abs(2 * (w * x + b - y) * x)"),
        "The errors are those of the best line, w x + b - y: yours are without w.": ("w * x + b", "b"),
    },
    passed="four times the batch gives a quarter of the variance, because the noise is averaged.",
)
# fmt: on
