"""The checks of lab 5 about the options to partition a data set, and about tensor fusion."""

import numpy as np
import pytest
from changed import changed

from hvdlab.exercises import NotYet
from hvdlab.exercises.lab05_partition import check_fuse, check_partition


def partition(option, n, rank, size, epoch, seed):
    if option == "random":
        return np.random.default_rng([seed, epoch, rank]).integers(n, size=n // size)
    if option == "fixed":
        shard = np.random.default_rng(seed).permutation(n)[rank::size]
        return np.random.default_rng([seed, epoch]).permutation(shard)
    return np.random.default_rng([seed, epoch]).permutation(n)[rank::size]


def test_the_right_partition_passes(capsys):
    check_partition(partition)
    assert "Right: reshuffle and fixed read each image once" in capsys.readouterr().out


DRAW = "np.random.default_rng([seed, epoch, rank]).integers(n, size=n // size)"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (("epoch]).permutation(n)[rank::size]", "epoch, rank]).permutation(n)[rank::size]"),
         '"reshuffle": .* images are read by both ranks in epoch 0'),
        (("epoch]).permutation(n)[rank::size]", "epoch]).permutation(n)[: n // size]"),
         "both ranks read the same images"),
        (("[seed, epoch]).permutation(n)", "seed + 1).permutation(n)"),
         '"reshuffle": rank 0 reads the same images in the epochs 0 and 1'),
        (("default_rng(seed)", "default_rng([seed, epoch, 5])"), '"fixed": rank 0 reads other images in'),
        (("np.random.default_rng([seed, epoch]).permutation(shard)", "shard"), "in the same order in both"),
        ((DRAW, "np.random.default_rng([seed, epoch, rank]).permutation(n)[: n // size]"),
         '"random": no image is read twice'),
        ((DRAW, DRAW.replace(", rank", "")), "the second rank adds nothing"),
        ((DRAW, DRAW.replace("epoch, ", "")), '"random": rank 0 reads the same images in every epoch'),
        ((DRAW, DRAW.replace("(n, size", "(n // size, size")), "reads only a part of the set"),
        ((DRAW, DRAW.replace("size=n // size", "size=n")), r"must return an array of numbers of shape \(500"),
        (("np.random.default_rng([seed, epoch, rank])", "np.random.default_rng()"), "returns other images"),
    ],
)  # fmt: skip
def test_a_wrong_partition_is_named(changes, says):
    with pytest.raises(NotYet, match=says):
        check_partition(changed(partition, *changes))


def fuse(sizes, threshold):
    messages = []
    for size in sizes:
        if messages and sum(messages[-1]) + size <= threshold:
            messages[-1].append(size)
        else:
            messages.append([size])
    return messages


def test_the_right_fusion_passes(capsys):
    check_fuse(fuse)
    assert "Right: gradients join the last message" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (changed(fuse, "<=", "<"), "exactly the threshold"),
        (changed(fuse, "sum(messages[-1]) + size", "size"), r"40 \+ 10 \+ 60 is more than 100"),
        (lambda sizes, threshold: [sizes], "is more than 100"),
        (
            lambda sizes, threshold: [[size] for size in sizes],
            r"expected \[\[40, 10\], \[60, 30\]\]",
        ),
        (lambda sizes, threshold: None, "returned None"),
    ],
)
def test_a_wrong_fusion_is_named(wrong, says):
    with pytest.raises(NotYet, match=says):
        check_fuse(wrong)
