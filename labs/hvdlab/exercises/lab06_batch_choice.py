"""Checks of lab 6: norms of a data-parallel step, the law of steps, the choice of a batch, rescaling.

Each check begins with a case that is computed by hand, for which the results of known mistakes are known.
"""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, call_unchanged, compare, exercise, number, numbers, right

ANY = None  # in a wrong answer: this number can be anything


@exercise
def check_norms_before_and_after(norms_before_and_after: Callable) -> None:
    """Demand the mean squared norm of the ranks, the squared norm of their mean, and that mean.

    Args:
        norms_before_and_after: The learner's `norms_before_and_after(ranks)`, where each rank is a list of
            arrays.
    """
    ranks = [[np.array([3.0, 0.0]), np.array([[4.0]])], [np.array([1.0, 2.0]), np.array([[0.0]])]]
    small, big = _norms(norms_before_and_after, ranks, "two ranks")
    mistakes = {
        "These are norms without the square: add up the squares and take no root.":
            [((5 + 5**0.5) / 2, 3), ((5 + 5**0.5) / 2, ANY)],
        "The first number is the sum over the ranks: divide it by the number of ranks.": (30, ANY),
        "The second number belongs to the sum of the gradients: an all-reduce of gradients takes the mean.":
            (ANY, 36),
        "You use the first array of each rank only: add up the squares of all its arrays.": (7, ANY),
        "Both numbers are the mean squared norm of the ranks. The second one is the squared norm of the mean "
        "gradient: average first, then square.": (15, 15),
        "The two numbers are swapped: the first one belongs to the single ranks.": (9, 15),
    }  # fmt: skip
    by_hand = (
        "By hand: the ranks have 9 + 0 + 16 = 25 and 1 + 4 + 0 = 5, whose mean is 15. The mean gradient is "
        "[2, 1] and [[2]], with 4 + 1 + 4 = 9."
    )
    compare("the pair of numbers for two ranks", (small, big), (15, 9), mistakes, by_hand)
    rng = np.random.default_rng(6)
    many = [[rng.normal(size=(4, 3)), rng.normal(size=3)] for _ in range(8)]
    flat = np.array([np.concatenate([part.ravel() for part in rank]) for rank in many])
    expected = np.square(flat).sum(1).mean(), np.square(flat.mean(0)).sum()
    compare("the pair for eight ranks", _norms(norms_before_and_after, many, "eight"), expected)
    right(
        "15 and 9 by hand, and the same for eight ranks. The mean has the smaller norm, because the noise of "
        "the ranks partly cancels."
    )


def _norms(function: Callable, ranks: list, name: str) -> tuple[float, float]:
    """Return the two numbers of an answer, after a check of its mean gradient."""
    case = f"norms_before_and_after of {name}"
    given = [[part.copy() for part in rank] for rank in ranks]
    answer = call(function, given)
    for rank, original in zip(given, ranks, strict=True):
        if not all(np.array_equal(*pair) for pair in zip(rank, original, strict=True)):
            raise NotYet(
                f"{function.__name__} changes the gradients that it is given. Work on copies, because the "
                "caller still needs them."
            )
    if answer is None:
        raise NotYet(f"{case} returned None: is `return` missing?")
    if not (isinstance(answer, tuple | list) and len(answer) == 3):
        raise NotYet(
            f"{case} must return three things: (small_norm2, big_norm2, average). Received: {answer!r}"
        )
    small, big = (number(value, case) for value in answer[:2])
    expected = [np.mean(parts, axis=0) for parts in zip(*ranks, strict=True)]
    average = answer[2]
    if not (isinstance(average, tuple | list) and len(average) == len(expected)):
        raise NotYet(
            f"The third result of {case} must be a list with one array for each array of a rank: the mean "
            f"gradient. Received: {average!r}"
        )
    for part, wanted in zip(average, expected, strict=True):
        if np.shape(part) != wanted.shape:
            raise NotYet(
                f"{case}: an array of the mean gradient has the shape {np.shape(part)}, expected "
                f"{wanted.shape}. Average over the ranks only: np.mean(parts, axis=0)."
            )
        compare(
            f"{case}: an array of the mean gradient", np.asarray(part, float), wanted,
            {"That is the sum over the ranks: divide by their number.": wanted * len(ranks)},
        )  # fmt: skip
    return small, big


@exercise
def check_scaling_law(scaling_law: Callable) -> None:
    """Demand steps, images, and the fraction of the steps that twice the batch saves.

    Args:
        scaling_law: The learner's `scaling_law(batch, s_min, b_crit)`.
    """
    case = "scaling_law(50, 100, 200)"
    answer = numbers(call_unchanged(scaling_law, 50, 100, 200), case, 3, "(steps, images, saved)")
    mistakes = {
        "The quotient is upside down: with a smaller batch there are more steps, 1 + b_crit / batch.":
            (100 * (1 + 50 / 200), ANY, ANY),
        "images is steps times batch: every step reads `batch` images.":
            [(500, 500, ANY), (500, 10, ANY), (500, 5000, ANY)],
        "That is the fraction of the steps that remains, S(2B) / S(B). The saved fraction is 1 minus it.":
            (500, 25_000, 0.6),
        "That is the number of steps saved: divide it by the steps of the single batch.":
            (500, 25_000, 200),
        "That is S(B) / S(2B): divide the steps of the doubled batch by those of the single batch.":
            [(500, 25_000, 500 / 300), (500, 25_000, 1 - 500 / 300)],
        "saved is a fraction, not a percentage.": (500, 25_000, 40),
    }  # fmt: skip
    by_hand = (
        "By hand: S(50) = 100 (1 + 200 / 50) = 500 steps read 500 x 50 = 25,000 images, and S(100) = 300 is "
        "40 % less than 500."
    )
    compare(case, tuple(answer), (500, 25_000, 0.4), mistakes, by_hand)
    case = "scaling_law(200, 100, 200)"
    answer = numbers(call_unchanged(scaling_law, 200, 100, 200), case, 3, "(steps, images, saved)")
    quarter = "At batch = b_crit twice the batch saves exactly a quarter of the steps."
    compare(case, tuple(answer), (200, 40_000, 0.25), otherwise=quarter)
    batches = np.array([16.0, 256.0])
    case = "scaling_law(np.array([16, 256]), 100, 200)"
    answer = call_unchanged(scaling_law, batches, 100, 200)
    expected = np.array([[1350, 178.125], [21_600, 45_600], [200 / 432, 200 / 912]])
    compare(case, numbers(answer, case, (3, 2)), expected)
    right("by hand for 50 and 200 images, and for arrays. At b_crit the saving is a quarter.")


BATCHES, STEPS = np.array([64, 16, 32, 128]), np.array([1500.0, 3600, 2000, 1500])
STEP_SECONDS = np.array([1.2, 1.0, 1.0, 1.3])
WHY = (
    "The table has batches of 16, 32, 64 and 128 images with 16 images per rank, so 1, 2, 4 and 8 ranks. "
    "Their runs take 3600, 2000, 1800 and 1950 s and cost 2, 2.22, 4 and 8.67 at 2 per rank and hour."
)


@exercise
def check_choose_batch(choose_batch: Callable) -> None:
    """Demand the cheapest batch that meets a deadline, with its seconds and its cost, or None.

    Args:
        choose_batch: The learner's `choose_batch(batches, steps, step_seconds, images_per_rank, price,
            deadline)`.
    """
    cost = 4000 / 3600 * 2
    for deadline, expected in (
        (2500, (32, 2000, cost)),
        (1900, (64, 1800, 4.0)),
        (9000, (16, 3600, 2.0)),
        (2000, (32, 2000, cost)),
        (1000, None),
    ):
        case = f"choose_batch with a deadline of {deadline} s"
        table = BATCHES.copy(), STEPS.copy(), STEP_SECONDS.copy()
        answer = call_unchanged(choose_batch, *table, 16, 2.0, deadline)
        if expected is None:
            if answer is not None:
                raise NotYet(f"{case} is {answer!r}, expected None: no run is that fast. {WHY}")
            continue
        if answer is None:
            late = " A run that ends exactly at the deadline meets it." if deadline == 2000 else ""
            raise NotYet(f"{case} returned None, expected {expected}.{late} {WHY}")
        batch, seconds, bill = expected
        exactly = {"A run that ends exactly at the deadline meets it.": (64, 1800, ANY)}
        mistakes = (exactly if deadline == 2000 else {}) | {
            "The price is per hour: divide the seconds by 3600.": (batch, seconds, bill * 3600),
            "The bill counts one rank only: multiply it by the number of ranks, batch / images_per_rank.":
                [(16 * 2**k, s, s / 3600 * 2) for k, s in enumerate((3600, 2000, 1800, 1950)) if k],
            "The bill counts images instead of ranks: divide the batch by images_per_rank.":
                (batch, seconds, bill * 16),
            "That is the fastest run. Of those that meet the deadline take the cheapest.":
                (64, 1800, ANY) if batch != 64 else (ANY, ANY, ANY, ANY),
            "That run is too late: compare its seconds with the deadline.":
                [(b, s, ANY) for b, s in ((16, 3600), (32, 2000), (128, 1950)) if s > deadline],
            "These are steps, not seconds: multiply them by the seconds of a step.": (64, 1500, ANY),
            "That run costs more than another one that meets the deadline.":
                [(b, s, ANY) for b, s in ((64, 1800), (128, 1950)) if b != batch],
        }  # fmt: skip
        mistakes = {text: wrong for text, wrong in mistakes.items() if np.size(wrong) != 4}
        answer = numbers(answer, case, 3, "(batch, seconds, cost)")
        compare(case, tuple(answer), expected, mistakes, WHY)
    right("the cheapest batch for four deadlines, and None where no batch is fast enough.")


@exercise
def check_rescaled(rescaled: Callable) -> None:
    """Demand other weights of the same function: the first layer divided, the second one multiplied."""
    weights = [np.array([[2.0]]), np.array([1.0]), np.array([[3.0]]), np.array([5.0])]
    answer = call(rescaled, [array.copy() for array in weights], 4)
    case = "rescaled([[[2]], [1], [[3]], [5]], 4)"
    if not (isinstance(answer, tuple | list) and len(answer) == 4):
        raise NotYet(f"{case} must return a list of four arrays. Received: {answer!r}")
    flat = [number(array, case) for array in answer]
    mistakes = {
        "Nothing was changed: divide the arrays of the first layer by the factor.": (2, 1, 3, 5),
        "The bias of the first layer must be divided, too, or its outputs are not 4 times smaller.":
            (0.5, 1, 12, 5),
        "The second layer does not compensate: multiply its weights by the factor.":
            [(0.5, 0.25, 3, 5), (0.5, 0.25, 0.75, 5)],
        "The bias of the second layer must stay: it is added after the weights have compensated.":
            (0.5, 0.25, 12, 20),
        "You multiply the first layer and divide the second: it is the other way round here.":
            (8, 4, 0.75, 5),
    }  # fmt: skip
    compare(case, tuple(flat), (0.5, 0.25, 12, 5), mistakes)
    rng = np.random.default_rng(6)
    many = [rng.normal(size=shape) for shape in ((5, 4), 4, (4, 3), 3, (3, 2), 2)]
    x = rng.normal(size=(7, 5))
    given = [array.copy() for array in many]
    outputs = [_output(x, weights) for weights in (many, call(rescaled, given, 3.0))]
    compare("the output of a network of three layers after rescaled", outputs[1], outputs[0])
    if not all(np.array_equal(*pair) for pair in zip(given, many, strict=True)):
        raise NotYet("rescaled changes the weights that it is given. Return new arrays.")
    right(
        "the weights differ and the outputs are the same, for one unit by hand and for three layers."
    )


def _output(x: np.ndarray, weights: list) -> np.ndarray:
    for layer in range(0, len(weights), 2):
        x = x @ weights[layer] + weights[layer + 1]
        if layer + 2 < len(weights):
            x = np.maximum(x, 0)
    return x
