"""Exercises of lab 5: three options to partition a data set among ranks, and tensor fusion."""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, call_unchanged, numbers, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise

IMAGES, RANKS, EPOCHS = 10_000, 4, 16


def partition(option, n, rank, size, epoch, seed):
    if option == "random":
        return np.random.default_rng([seed, epoch, rank]).integers(n, size=n // size)
    if option == "fixed":
        shard = np.random.default_rng(seed).permutation(n)[rank::size]
        return np.random.default_rng([seed, epoch, rank]).permutation(shard)
    order = np.random.default_rng([seed, epoch]).permutation(n)
    return order[rank::size]


def what_is_read(partition: Callable, option: str) -> dict[str, object]:
    """Return what the images have in common that ranks read, in two epochs and with two seeds."""

    def read(rank: int, epoch: int = 0, seed: int = 7) -> list[int]:
        arguments = option, IMAGES, rank, RANKS, epoch, seed
        case = f"partition{arguments!r}"
        answer = call(partition, *arguments, name="partition")
        images = numbers(answer, case, (IMAGES // RANKS,), "(n // size image numbers)")
        if images.min() < 0 or images.max() >= IMAGES or (images % 1).any():
            raise NotYet(f"{case} must return whole numbers from 0 to {IMAGES - 1}.")
        return images.tolist()

    ranks, later, of_seed = [read(rank) for rank in range(RANKS)], read(0, epoch=1), read(0, seed=8)
    many = [set().union(*(read(rank, epoch) for epoch in range(EPOCHS))) for rank in range(RANKS)]
    facts = {
        "A second call returns the same images": read(0) == ranks[0],
        "The fraction of the images that all ranks together read": round(
            len(set().union(*ranks)) / IMAGES, 1
        ),
        "Ranks 0 and 1 read other images": ranks[0] != ranks[1],
        "Another seed gives rank 0 other images": set(of_seed) != set(ranks[0]),
        "Rank 0 keeps its images in the next epoch": set(later) == set(ranks[0]),
        "Rank 0 reads in another order in the next epoch": later != ranks[0],
        "Rank 0 in epoch 1 reads what rank 1 read in epoch 0": later == ranks[1],
        "Rank 0 reads in ascending order": ranks[0] == sorted(ranks[0]),
        f"The fraction of the images that rank 0 reads in {EPOCHS} epochs": round(
            len(many[0]) / IMAGES, 1
        ),
        f"Some rank reads the last image within {EPOCHS} epochs": IMAGES - 1 in set().union(*many),
    }
    return {f"{name}, with": value for name, value in facts.items()}


# fmt: off
check_partition = FunctionExercise(
    partition,
    [Case((option,), reason, call=f'partition("{option}", n={IMAGES}, rank, size={RANKS}, epoch, seed)')
     for option, reason in (
        ("reshuffle", "In each epoch all ranks split the same permutation of all images."),
        ("fixed", "A rank keeps its shard, and shuffles it again in each epoch."),
        ("random", "Each rank draws n // size of all n images, with replacement."),
    )],
    {
        "Take every size-th image of the permutation, beginning with the rank: order[rank::size]. Yours "
        "gives all ranks the same images.":
            [("order[rank::size]", "order[: n // size]"),
             ("permutation(n)[rank::size]", "permutation(n)[: n // size]")],
        "All ranks must split the same permutation, so its seed must not contain the rank.":
            [("[seed, epoch])", "[seed, epoch, rank])"),
             ("default_rng(seed)", "default_rng([seed, rank])")],
        "The permutation must depend on the epoch: default_rng([seed, epoch]).":
            ("default_rng([seed, epoch]).permutation(n)", "default_rng([seed, 1]).permutation(n)"),
        "Split a permutation that does not depend on the epoch, and shuffle the shard afterwards.":
            ("default_rng(seed)", "default_rng([seed, epoch, 5])"),
        "The order within the shard must depend on the epoch: shuffle the shard in each epoch.":
            ("np.random.default_rng([seed, epoch, rank]).permutation(shard)", "shard"),
        "Random reads draw with replacement from all n images, rng.integers(n, size=n // size), so that some "
        "images are read twice.": (".integers(n, size=n // size)", ".permutation(n)[: n // size]"),
        "All ranks draw the same images, so the other ranks add nothing: the seed must contain the rank.":
            ("default_rng([seed, epoch, rank]).integers", "default_rng([seed, epoch]).integers"),
        "The ranks draw the same images in each epoch: the seed must contain the epoch.":
            ("default_rng([seed, epoch, rank]).integers", "default_rng([seed, 5, rank]).integers"),
        "The ranks read only a part of the set: draw from all n images.":
            ("integers(n, size", "integers(n // size, size"),
        "The images must depend on the argument seed, or nobody can repeat the experiment with other images.":
            [("[seed, epoch]", "[5, epoch]"), ("default_rng(seed)", "default_rng(5)"),
             ("[seed, epoch, rank]).integers", "[5, epoch, rank]).integers")],
        "The sum seed + epoch + rank is the same for rank 1 in epoch 0 and for rank 0 in epoch 1. Pass the "
        "list [seed, epoch, rank], in which each number counts by itself.":
            ("default_rng([seed, epoch, rank]).integers", "default_rng(seed + epoch + rank).integers"),
        "Draw from np.random.default_rng([...]), so that seed, epoch and rank decide.":
            [("[seed, epoch]", ""), ("[seed, epoch, rank]).permutation", ").permutation"),
             ("[seed, epoch, rank]).integers", ").integers")],
    },
    passed="reshuffle and fixed read each image once per epoch, random reads some twice; and only with fixed "
    "a rank keeps its images.",
    observe=what_is_read,
)
# fmt: on


def fuse(sizes, threshold):
    messages = []
    for size in sizes:
        if messages and sum(messages[-1]) + size <= threshold:
            messages[-1].append(size)
        else:
            messages.append([size])
    return messages


def first_fit(sizes, threshold):
    messages = []
    for size in sizes:
        for message in messages:
            if sum(message) + size <= threshold:
                message.append(size)
                break
        else:
            messages.append([size])
    return messages


def messages(fuse: Callable, sizes: list[int], threshold: int) -> dict[str, object]:
    """Return the messages that gradients of these sizes are put into."""
    answer = call_unchanged(fuse, sizes, threshold, name="fuse")
    if answer is None:
        raise NotYet("fuse returned None: `return` the list of messages.")
    try:
        found = [np.array([float(size) for size in message]) for message in answer]
    except (TypeError, ValueError):
        raise NotYet(
            f"fuse must return a list of messages, each a list of sizes. Received: {received(answer)}"
        ) from None
    parts = {f"Message {number} of": message for number, message in enumerate(found, 1)}
    return {"The number of messages of": len(found), **parts}


# fmt: off
check_fuse = FunctionExercise(
    fuse,
    [
        Case(([40, 10, 60, 30], 100), "40 + 10 + 60 is more than 100, so 60 begins a new message."),
        Case(([60, 40, 10], 100), "60 + 40 is exactly 100, and 10 begins a new message."),
        Case(([40, 10], 0), "With the threshold 0 nothing is fused."),
        Case(([10, 500, 20], 100), "A gradient above the threshold is a message of its own."),
        Case(([60, 50, 40], 100), "50 does not fit, and 40 joins it in the second message."),
    ],
    {
        "A message may have exactly the threshold: <=, and not <.": ("<=", "<"),
        "Add up all sizes of the message, and not only the last one.":
            ("sum(messages[-1])", "messages[-1][-1]"),
        "Compare the size of the whole message with the threshold, and not that of the new gradient.":
            ("sum(messages[-1]) + size", "size"),
        "All gradients are in one message: one that does not fit must begin a new message.":
            ("sum(messages[-1]) + size <= threshold", "True"),
        "A gradient that fits must join the last message.": ("if messages and", "if False and"),
        "Look only at the last message: an earlier one has already been sent.": first_fit,
        "The first message is empty: begin with no message at all.": ("messages = []", "messages = [[]]"),
    },
    passed="gradients join the last message while they fit, and one that does not fit begins a new one.",
    observe=messages,
)
# fmt: on
