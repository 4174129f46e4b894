"""Right answers of lab 5 in other styles."""

import numpy as np

from hvdlab.exercises import lab05_partition


def with_one_generator(option, n, rank, size, epoch, seed):
    """Contiguous shards, and lists of whole numbers."""
    each = n // size
    mine = slice(rank * each, (rank + 1) * each)
    if option == "reshuffle":
        return np.random.default_rng([seed, epoch]).permutation(n)[mine].tolist()
    own = np.random.default_rng([rank, seed, epoch])
    if option == "random":
        return [int(own.integers(0, n)) for _ in range(each)]
    shard = np.random.default_rng(seed).permutation(n)[mine]
    own.shuffle(shard)
    return shard.tolist()


def as_the_sampler_does(option, n, rank, size, epoch, seed):
    """The sum of seed and epoch, as in PyTorch's DistributedSampler."""
    if option == "random":
        return np.random.default_rng((epoch, rank, seed)).choice(n, n // size)
    order = np.random.default_rng(seed + epoch if option == "reshuffle" else seed).permutation(n)
    shard = order.reshape(-1, size)[:, rank]
    if option == "fixed":
        shard = shard[np.random.default_rng([seed, epoch]).permutation(len(shard))]
    return shard.astype(float)


def with_a_sum(sizes, threshold):
    messages, full = [], None
    for size in sizes:
        if full is None or full + size > threshold:
            messages, full = [*messages, ()], 0
        messages[-1] += (size,)
        full += size
    return tuple(messages)


def by_recursion(sizes, threshold):
    if not sizes:
        return []
    end = 1
    while end < len(sizes) and sum(sizes[: end + 1]) <= threshold:
        end += 1
    return [np.array(sizes[:end]), *by_recursion(sizes[end:], threshold)]


SMALL = {"ranks": 2, "images": 16, "heldout": 8, "epochs": 1}
TRAIN_VERDICTS = {
    "a": {"ranks": 3, "images": 100, "heldout": 101, "epochs": 1},
    "b": {"ranks": 1, "images": 3, "heldout": 1, "epochs": 2},
    "c": "correct",
    "d": {"ranks": 4, "images": 16, "heldout": 100, "epochs": 3},
}


def changed(**verdicts):
    return lambda: TRAIN_VERDICTS | verdicts


def in_one_case_for_all():
    case = {"ranks": 2, "images": 33, "heldout": 25, "epochs": 10}
    return {"a": case, "b": case, "c": "correct", "d": case}


review_train = [
    lambda: TRAIN_VERDICTS,
    in_one_case_for_all,
    lambda: {
        "d": SMALL | {"epochs": 2},
        "c": "correct",
        "b": SMALL | {"epochs": 20, "ranks": 8},
        "a": SMALL | {"heldout": 3},
    },
    lambda: (
        TRAIN_VERDICTS | {"a": SMALL | {"heldout": 1}, "d": SMALL | {"heldout": 1, "epochs": 4}}
    ),
]


def edited_partition(option, change):
    """Return the right partition with another list of images for one option."""
    right = lab05_partition.partition

    def partition(given, n, rank, size, epoch, seed):
        if given != option:
            return right(given, n, rank, size, epoch, seed)
        rng = np.random.default_rng([seed, epoch, rank])
        return change(rng, right(given, n, rank, size, epoch, seed), n, rank, size)

    return partition


PARTITIONS = [
    (
        edited_partition("random", lambda g, read, n, r, s: r + s * g.integers(0, n // s, n // s)),
        "16 epochs",
    ),
    (edited_partition("reshuffle", lambda g, read, n, r, s: np.sort(read)), "ascending order"),
    (
        edited_partition("random", lambda g, read, n, r, s: g.integers(0, n - 1, n // s)),
        "the last image",
    ),
]
REFUSED = {
    "partition": PARTITIONS,
    "review_train": [
        (changed(a="correct"), "Patch a is not correct: there is a case in which it fails."),
        (changed(a=SMALL), "Patch a holds in your case"),
        (changed(b=SMALL | {"heldout": 9}), "Patch b holds in your case"),
        (changed(c=SMALL | {"images": 17}), "Patch c holds in your case"),
        (
            changed(c=SMALL | {"images": 33, "ranks": 4}),
            "It holds in every case that the check tried",
        ),
        (changed(d="correct"), "Patch d is not correct"),
        (changed(d=SMALL | {"ranks": 1, "epochs": 5}), "There is another case in which it fails."),
        (changed(d=SMALL | {"heldout": 0}), "heldout must be 1 to 1000."),
        (changed(c=SMALL | {"images": 1}), "Patch c holds in your case"),
        (
            changed(c={"ranks": 1, "images": 2, "heldout": 2, "epochs": 4}),
            "train without a patch fails in this case, too.",
        ),
        (changed(d=SMALL | {"epochs": 21}), "epochs must be 1 to 20."),
    ],
}
partition = [with_one_generator, as_the_sampler_does]
fuse = [with_a_sum, by_recursion]
