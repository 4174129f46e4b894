"""Exercise of lab 8: review patches of a converted script, which runs in small and without a network."""

import math
from collections.abc import Callable

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.patch_review import PatchReview

LARGEST = {"images": 100_000, "batch": 100_000, "ranks": 1000, "epochs": 10}  # in a case


def converted_run(images, correct, batch, ranks, epochs):
    # correct: 1 for each held-out image that the network classifies right, otherwise 0
    steps, right, total = [], 0, 0
    for rank in range(ranks):
        shard = -(-images // ranks)
        steps.append(-(-shard // batch))
        own = correct[rank::ranks]
        right += sum(own)  # all-reduce, sum
        total += len(own)
    all_steps = epochs * steps[0]
    rates = [0.25 * ranks * (1 - step / all_steps) for step in range(all_steps)]
    return steps, right / total, rates


def wrong_run(
    patched: Callable, images: int, correct: list, batch: int, ranks: int, epochs: int
) -> str:
    """Return what goes wrong in a run with a patched function; "" if nothing does."""
    steps, accuracy, rates = patched(images, correct, batch, ranks, epochs)
    for rank, count in enumerate(steps):
        if count != steps[0]:
            return (
                f"Rank 0 makes {steps[0]} steps in an epoch and rank {rank} makes {count}, so the ranks wait "
                "for each other in an all-reduce for ever."
            )
    expected = sum(correct) / len(correct)
    if not math.isclose(accuracy, expected, abs_tol=1e-9):
        return (
            f"The accuracy is {accuracy:.4g}, but {expected:.4g} of the held-out images are right."
        )
    if len(rates) != epochs * steps[0]:
        return f"The schedule has {len(rates)} learning rates, and the run makes {epochs * steps[0]} steps."
    return ""


def unusable(images: int, correct: list, batch: int, ranks: int, epochs: int) -> str:
    """Return what is wrong with the case of a learner; "" if nothing is."""
    numbers = {"images": images, "batch": batch, "ranks": ranks, "epochs": epochs}
    for name, value in numbers.items():
        if not 1 <= value <= LARGEST[name]:
            return f"{name} must be from 1 to {LARGEST[name]}."
    if not correct or not set(map(str, correct)) <= {"0", "1"}:
        return "correct must be a list of 0 and 1, with at least one of them."
    return ""


# fmt: off
CONVERSION_REVIEW = PatchReview(
    converted_run,
    {
        "a": ("right += sum(own)  # all-reduce, sum", "right += sum(own) / len(own)  # all-reduce, average",
              "total += len(own)", "total += 1"),
        "b": ("shard = -(-images // ranks)", "shard = len(range(rank, images, ranks))  # no image twice"),
        "c": ("own = correct[rank::ranks]",
              "own = correct[rank * len(correct) // ranks : (rank + 1) * len(correct) // ranks]"),
        "d": ("all_steps = epochs * steps[0]", "all_steps = -(-epochs * images // (ranks * batch))"),
    },
    wrong_run,
    example={"images": 16, "correct": [1, 0, 1, 1], "batch": 4, "ranks": 2, "epochs": 2},
    tried=[
        {"images": 16, "correct": [1, 0, 1, 1], "batch": 4, "ranks": 2, "epochs": 2},
        {"images": 16, "correct": [1, 0, 1], "batch": 4, "ranks": 2, "epochs": 1},
        {"images": 9, "correct": [1, 0, 1, 1], "batch": 4, "ranks": 2, "epochs": 1},
        {"images": 10, "correct": [1, 0], "batch": 4, "ranks": 2, "epochs": 2},
        {"images": 50, "correct": [0, 1], "batch": 7, "ranks": 3, "epochs": 3},
        {"images": 1, "correct": [1, 0, 0, 1, 1, 1, 0], "batch": 2, "ranks": 4, "epochs": 1},
    ],
    check_case=unusable,
)
# fmt: on


def review_conversion():
    return {
        "a": {"images": 16, "correct": [1, 0, 1], "batch": 4, "ranks": 2, "epochs": 2},
        "b": {"images": 9, "correct": [1, 0, 1, 1], "batch": 4, "ranks": 2, "epochs": 2},
        "c": "correct",
        "d": {"images": 10, "correct": [1, 0, 1, 1], "batch": 4, "ranks": 2, "epochs": 2},
    }


check_review_conversion = FunctionExercise(
    review_conversion,
    [Case(())],
    observe=CONVERSION_REVIEW.verdicts,
    passed="patch c is correct, and each of the others fails in your case. CIFAR-10 with 2 ranks and batches "
    "of 250 shows none of these faults, because no division has a remainder.",
)
