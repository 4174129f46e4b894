"""Exercises of lab 6: norms of a data-parallel step, the law of steps, the choice of a batch, rescaling."""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call_unchanged, number, numbers, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise

RNG = np.random.default_rng(6)


def norms_before_and_after(ranks):
    small_norm2 = np.mean([sum(np.sum(part**2) for part in rank) for rank in ranks])
    average = [np.mean(parts, axis=0) for parts in zip(*ranks, strict=True)]
    big_norm2 = sum(np.sum(part**2) for part in average)
    return small_norm2, big_norm2, average


def norms_and_average(norms_before_and_after: Callable, ranks: list) -> dict[str, object]:
    """Return the two norms, and each array of the average gradient."""
    name = "norms_before_and_after"
    found = call_unchanged(norms_before_and_after, ranks, name=name)
    if not (isinstance(found, tuple | list) and len(found) == 3):
        raise NotYet(
            f"{name} must return three things: (small_norm2, big_norm2, average). "
            f"Received: {received(found)}"
        )
    small, big, average = found
    if not (isinstance(average, tuple | list) and len(average) == len(ranks[0])):
        raise NotYet(
            f"The third result of {name} must be a list with one array for each array of a rank: the mean "
            f"gradient. Received: {received(average)}"
        )
    values = {"small_norm2 of": number(small, name), "big_norm2 of": number(big, name)}
    for n, part in enumerate(average):
        values[f"Array {n} of the average of"] = numbers(part, f"average[{n}] of {name}", None)
    return values


# fmt: off
check_norms_before_and_after = FunctionExercise(
    norms_before_and_after,
    [
        Case(([[np.array([3.0, 0.0]), np.array([[4.0]])], [np.array([1.0, 2.0]), np.array([[0.0]])]],),
             "By hand: the ranks have 9 + 0 + 16 = 25 and 1 + 4 + 0 = 5, whose mean is 15. The mean gradient "
             "is [2, 1] and [[2]], with 4 + 1 + 4 = 9.",
             "norms_before_and_after([[[3, 0], [[4]]], [[1, 2], [[0]]]])"),
        Case(([[RNG.normal(size=(4, 3)), RNG.normal(size=3)] for _ in range(8)],),
             "Use all ranks and all arrays that are passed.", "norms_before_and_after of eight ranks"),
    ],
    {
        "These are norms without the square: add up the squares and take no root.":
            [("in rank)", "in rank) ** 0.5", "in average)", "in average) ** 0.5"),
             ("in rank)", "in rank) ** 0.5")],
        "The first number is the sum over the ranks: divide it by the number of ranks.":
            ("np.mean([", "np.sum(["),
        "The second number belongs to the sum of the gradients: an all-reduce of gradients takes the mean.":
            ("= sum(", "= len(ranks) ** 2 * sum("),
        "The average is the sum over the ranks: divide it by their number.":
            ("np.mean(parts", "np.sum(parts"),
        "You use the first array of each rank only: add up the squares of all its arrays.":
            [("in rank)", "in rank[:1])"), ("in rank)", "in rank[:1])", "in average)", "in average[:1])")],
        "Both numbers are the mean squared norm of the ranks. The second one is the squared norm of the mean "
        "gradient: average first, then square.":
            ("return small_norm2, big_norm2", "return small_norm2, small_norm2"),
        "The two numbers are swapped: the first one belongs to the single ranks.":
            ("return small_norm2, big_norm2", "return big_norm2, small_norm2"),
        "Average over the ranks only: np.mean(parts, axis=0).": ("axis=0", "axis=None"),
    },
    passed="15 and 9 by hand, and the same for eight ranks. The mean has the smaller norm, because the noise "
    "of the ranks partly cancels.",
    observe=norms_and_average,
)
# fmt: on


def scaling_law(batch, s_min, b_crit):
    steps = s_min * (1 + b_crit / batch)
    images = steps * batch
    saved = b_crit / (2 * (batch + b_crit))
    return steps, images, saved


# fmt: off
check_scaling_law = FunctionExercise(
    scaling_law,
    [
        Case((50, 100, 200), "By hand: S(50) = 100 (1 + 200 / 50) = 500 steps read 500 x 50 = 25,000 images, "
             "and S(100) = 300 is 40 % less than 500.", expected=(500, 25_000, 0.4)),
        Case((200, 100, 200), "At batch = b_crit twice the batch saves exactly a quarter of the steps.",
             expected=(200, 40_000, 0.25)),
        Case((np.array([16.0, 256.0]), 100, 200), "For an array of batches return three arrays of its shape.",
             expected=[[1350, 178.125], [21_600, 45_600], [200 / 432, 200 / 912]]),
    ],
    {
        "The quotient is upside down: with a smaller batch there are more steps, 1 + b_crit / batch.":
            ("b_crit / batch", "batch / b_crit"),
        "images is steps times batch: every step reads `batch` images.":
            [("steps * batch", images) for images in ("steps", "steps / batch", "s_min * batch")],
        "That is the fraction of the steps that remains, S(2B) / S(B). The saved fraction is 1 minus it.":
            ("saved =", "saved = 1 -"),
        "That is the number of steps saved: divide it by the steps of the single batch.":
            ("saved =", "saved = steps *"),
        "That is S(B) / S(2B): divide the steps of the doubled batch by those of the single batch.":
            [("images, saved", "images, 1 / (1 - saved)"), ("images, saved", "images, 1 - 1 / (1 - saved)")],
        "saved is a fraction, not a percentage.": ("saved =", "saved = 100 *"),
        "saved compares with the steps of the single batch, and yours with those of the doubled one.":
            ("images, saved", "images, 1 / (1 - saved) - 1"),
        "For an array of batches return three arrays of its shape, and not their mean.":
            ("return steps, images, saved", "return np.mean(steps), np.mean(images), np.mean(saved)"),
    },
    passed="by hand for 50 and 200 images, and for arrays. At b_crit the saving is a quarter.",
    shape=None, meaning="(steps, images, saved)",
)
# fmt: on


def choose_batch(batches, steps, step_seconds, images_per_rank, price, deadline):
    best = None
    for batch, count, each in zip(batches, steps, step_seconds, strict=True):
        seconds = count * each
        cost = batch / images_per_rank * seconds / 3600 * price
        if seconds <= deadline and (best is None or cost < best[2]):
            best = batch, seconds, cost
    return best


def three_or_none(choose_batch: Callable, *arguments: object) -> dict[str, np.ndarray | None]:
    found = call_unchanged(choose_batch, *arguments, name="choose_batch")
    if found is not None:
        found = numbers(found, "choose_batch", 3, "(batch, seconds, cost) or None")
    return {"": found}


TABLE = (
    np.array([128, 64, 16, 32]),
    np.array([1500.0, 1500, 3600, 2000]),
    np.array([1.3, 1.2, 1, 1]),
)
RUNS = (
    "The table has batches of 16, 32, 64 and 128 images with 16 images per rank, so 1, 2, 4 and 8 ranks. "
    "Their runs take 3600, 2000, 1800 and 1950 s and cost 2, 2.22, 4 and 8.67 at 2 per rank and hour."
)

# fmt: off
check_choose_batch = FunctionExercise(
    choose_batch,
    [Case((*TABLE, 16, 2.0, deadline), f"{reason}{RUNS}", f"choose_batch with a deadline of {deadline} s",
          expected) for deadline, expected, reason in [
        (2500, (32, 2000, 20 / 9), ""),
        (1900, (64, 1800, 4), ""),
        (9000, (16, 3600, 2), ""),
        (2000, (32, 2000, 20 / 9), "A run that ends exactly at the deadline meets it. "),
        (1000, None, "No run is that fast, so return None. "),
    ]],
    {
        "The price is per hour: divide the seconds by 3600.": (" / 3600", ""),
        "The bill counts one rank only: multiply it by the number of ranks, batch / images_per_rank.":
            ("batch / images_per_rank * ", ""),
        "The bill counts images instead of ranks: divide the batch by images_per_rank.":
            ("batch / images_per_rank", "batch"),
        "That is the fastest run. Of those that meet the deadline take the cheapest.":
            ("cost < best[2]", "seconds < best[1]"),
        "That run is too late: compare its seconds with the deadline.": ("seconds <= deadline and ", ""),
        "These are steps, not seconds: multiply them by the seconds of a step.": ("count * each", "count"),
        "A run that ends exactly at the deadline meets it.": ("<= deadline", "< deadline"),
        "That run costs more than another one that meets the deadline.":
            [("(best is None or cost < best[2])", "best is None"),
             (" and (best is None or cost < best[2])", "")],
        "No run is that fast: return None where no run meets the deadline.":
            ("return best", "return best or (0, 0, 0)"),
    },
    passed="the cheapest batch for four deadlines, and None where no batch is fast enough.",
    observe=three_or_none,
)
# fmt: on


def rescaled(weights, factor):
    first, first_bias, second, *rest = weights
    return [first / factor, first_bias / factor, second * factor, *rest]


def each_array(rescaled: Callable, weights: list, factor: float) -> dict[str, np.ndarray]:
    found = call_unchanged(rescaled, weights, factor, name="rescaled")
    if not (isinstance(found, tuple | list) and len(found) == len(weights)):
        raise NotYet(
            f"rescaled must return a list of {len(weights)} arrays. Received: {received(found)}"
        )
    return {
        f"Array {n} of": numbers(array, f"array {n} of rescaled", None)
        for n, array in enumerate(found)
    }


# fmt: off
check_rescaled = FunctionExercise(
    rescaled,
    [
        Case(([np.array([[2.0]]), np.array([1.0]), np.array([[3.0]]), np.array([5.0])], 4),
             "Divide both arrays of the first layer by 4, multiply the weights of the second one by 4, and "
             "leave its bias.", "rescaled([[[2]], [1], [[3]], [5]], 4)"),
        Case(([RNG.normal(size=shape) for shape in ((5, 4), 4, (4, 3), 3, (3, 2), 2)], 3.0),
             "The third layer must stay as it is.", "rescaled of a network of three layers"),
    ],
    {
        "Nothing was changed: divide the arrays of the first layer by the factor.":
            ("[first / factor, first_bias / factor, second * factor, *rest]", "list(weights)"),
        "The bias of the first layer must be divided, too, or its outputs are not 4 times smaller.":
            ("first_bias / factor", "first_bias"),
        "The second layer does not compensate: multiply its weights by the factor.":
            [("second * factor", "second"), ("second * factor", "second / factor")],
        "The bias of the second layer must stay: it is added after the weights have compensated.":
            ("*rest]", "rest[0] * factor, *rest[1:]]"),
        "You multiply the first layer and divide the second: it is the other way round here.":
            lambda weights, factor: rescaled(weights, 1 / factor),
        "Only the first two layers change, and the others must stay.":
            ("*rest]", "rest[0], *[array * factor for array in rest[1:]]]"),
    },
    passed="the weights differ and the outputs are the same, for one unit by hand and for three layers.",
    observe=each_array,
)
# fmt: on
