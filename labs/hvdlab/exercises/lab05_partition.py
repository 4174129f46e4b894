"""Checks of lab 5: three options to partition a data set among ranks, and tensor fusion."""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, call_unchanged, numbers, right

IMAGES, RANKS = 1000, 2
OPTIONS = ("reshuffle", "fixed", "random")


def check_partition(partition: Callable) -> None:
    """Demand the three options: a new split per epoch, a fixed split, and random reads of the whole set.

    Args:
        partition: The learner's `partition(option, n, rank, size, epoch, seed)`.
    """
    read = {
        option: [
            [_read(partition, option, rank, epoch) for rank in range(RANKS)] for epoch in (0, 1)
        ]
        for option in OPTIONS
    }  # [option][epoch][rank]
    for option in ("reshuffle", "fixed"):
        for epoch, ranks in enumerate(read[option]):
            _check_split(option, epoch, ranks)
    _check_fixed(read["fixed"])
    if set(read["reshuffle"][0][0]) == set(read["reshuffle"][1][0]):
        raise NotYet(
            '"reshuffle": rank 0 reads the same images in the epochs 0 and 1. The permutation must depend on '
            "the epoch: default_rng([seed, epoch])."
        )
    _check_random(read["random"])
    right(
        "reshuffle and fixed read each image once per epoch, random reads some twice; and only with fixed "
        "a rank keeps its images."
    )


def _read(partition: Callable, option: str, rank: int, epoch: int) -> list[int]:
    arguments = option, IMAGES, rank, RANKS, epoch, 7
    case = f"partition{arguments!r}"
    answer = call(partition, *arguments, name="partition")
    found = numbers(answer, case, (IMAGES // RANKS,), "(n // size image numbers)")
    if found.min() < 0 or found.max() >= IMAGES or (found % 1).any():
        raise NotYet(f"{case} must return whole numbers from 0 to {IMAGES - 1}.")
    again = call(partition, *arguments, name="partition")
    if not np.array_equal(again, answer):
        raise NotYet(
            f"{case} returns other images when it is called again. Draw from "
            "np.random.default_rng([...]), so that seed, epoch and rank decide."
        )
    return found.astype(int).tolist()


def _check_split(option: str, epoch: int, ranks: list[list[int]]) -> None:
    """Raise NotYet unless the ranks together read each image once."""
    both = set(ranks[0]) & set(ranks[1])
    if len(both) > IMAGES // RANKS - 5:
        raise NotYet(
            f'"{option}": both ranks read the same images in epoch {epoch}. Take every size-th image of '
            "the permutation, beginning with the rank: order[rank::size]."
        )
    if both:
        raise NotYet(
            f'"{option}": {len(both)} images are read by both ranks in epoch {epoch}. All ranks must '
            "split the same permutation, so its seed must not contain the rank."
        )
    if len(set(ranks[0])) < len(ranks[0]):
        raise NotYet(f'"{option}": rank 0 reads some images twice in epoch {epoch}.')


def _check_fixed(epochs: list[list[list[int]]]) -> None:
    first, second = epochs[0][0], epochs[1][0]
    if set(first) != set(second):
        raise NotYet(
            '"fixed": rank 0 reads other images in epoch 1 than in epoch 0. Split a permutation that does '
            "not depend on the epoch, and shuffle the shard afterwards."
        )
    if first == second:
        raise NotYet(
            '"fixed": rank 0 reads its shard in the same order in both epochs. Shuffle the shard in each '
            "epoch."
        )


def _check_random(epochs: list[list[list[int]]]) -> None:
    first, second = epochs[0]
    if len(set(first)) == len(first):
        raise NotYet(
            '"random": no image is read twice by rank 0. Random reads draw with replacement from all n '
            "images: rng.integers(n, size=n // size)."
        )
    if first == second:
        raise NotYet(
            '"random": both ranks read the same images in the same order, so the second rank adds nothing. '
            "Its seed must contain the rank."
        )
    if first == epochs[1][0]:
        raise NotYet('"random": rank 0 reads the same images in every epoch.')
    if max(first) < 0.9 * IMAGES or min(first) > 0.1 * IMAGES:
        raise NotYet('"random": rank 0 reads only a part of the set. It draws from all n images.')


def check_fuse(fuse: Callable) -> None:
    """Demand that gradients are put into messages of at most the threshold, in order."""
    cases = [
        ([40, 10, 60, 30], 100, [[40, 10], [60, 30]], "40 + 10 + 60 is more than 100"),
        ([60, 40, 10], 100, [[60, 40], [10]], "a message may have exactly the threshold"),
        ([40, 10], 0, [[40], [10]], "with the threshold 0 nothing is fused"),
        ([10, 500, 20], 100, [[10], [500], [20]], "a large gradient is a message of its own"),
        ([60, 50, 40], 100, [[60], [50, 40]], "50 and 40 fit into the second message"),
    ]
    for sizes, threshold, expected, reason in cases:
        answer = call_unchanged(fuse, list(sizes), threshold, name="fuse")
        if answer is None:
            raise NotYet("fuse returned None: `return` the list of messages.")
        if answer != expected:
            raise NotYet(
                f"fuse({sizes}, {threshold}) is {answer!r}, expected {expected!r}: {reason}."
            )
    right(
        "gradients join the last message while they fit, and a gradient that does not fit begins a new one."
    )
