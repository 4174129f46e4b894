"""Dealing: every example is read, all ranks take equally many steps, every batch is repeatable."""

import doctest

import numpy as np
import pytest

from hvdlab.data import batches as module
from hvdlab.data.batches import Batches, shard, steps

SIZES = [(12, 1), (12, 4), (13, 4), (15, 4), (100, 7), (3, 5), (1, 8)]
STYLES = ["whole", "own"]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("n, size", SIZES)
def test_ranks_cover_the_set_in_equal_shards(n, size, style):
    for epoch in range(3):
        shards = [shard(n, r, size, epoch=epoch, seed=5, style=style) for r in range(size)]
        length = (n + size - 1) // size
        assert [(s.dtype, s.shape) for s in shards] == [(np.dtype(np.int64), (length,))] * size
        counts = np.bincount(np.concatenate(shards), minlength=n)
        assert len(counts) == n and counts.min() >= 1  # a stray index would lengthen it
        if n >= size:
            assert counts.max() <= 2 and (counts == 2).sum() == length * size - n


def test_whole_reads_other_examples_each_epoch_and_own_the_same():
    hands = {s: [set(shard(100, 1, 4, epoch=e, style=s).tolist()) for e in (0, 1)] for s in STYLES}
    assert hands["whole"][0] != hands["whole"][1]
    assert hands["own"][0] == hands["own"][1]


@pytest.mark.parametrize("style", STYLES)
def test_order_depends_on_epoch_and_seed_and_on_nothing_else(style):
    def order(epoch, seed):
        return shard(1000, 1, 2, epoch=epoch, seed=seed, style=style).tolist()

    assert order(0, 0) == order(0, 0)
    orders = [tuple(order(epoch, seed)) for epoch in range(4) for seed in range(4)]
    assert len(set(orders)) == 16


def test_whole_is_one_permutation_dealt_like_cards():
    permutation = np.random.default_rng([3, 2]).permutation(10)
    for rank in range(5):
        dealt = shard(10, rank, 5, epoch=2, seed=3)
        assert dealt.tolist() == [permutation[rank], permutation[rank + 5]]


def test_own_shards_of_sorted_data_are_mixed():
    labels = np.repeat(np.arange(10), 1000)
    for rank in range(4):
        counts = np.bincount(labels[shard(len(labels), rank, 4, style="own")], minlength=10)
        assert counts.min() > 200 and counts.max() < 300  # 250 each, were it exact


def test_ranks_shuffle_their_own_shards_differently():
    first = np.random.default_rng([0, 0]).permutation(1000).reshape(-1, 2).T
    places = [
        [first[rank].tolist().index(i) for i in shard(1000, rank, 2, style="own")]
        for rank in range(2)
    ]
    assert sorted(places[0]) == sorted(places[1]) == list(range(500))
    assert places[0] != places[1]


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"rank": 3}, "rank must be in 0..size-1. Received: rank=3, size=2"),
        ({"rank": -1}, "rank must be in 0..size-1. Received: rank=-1, size=2"),
        ({"n": 0}, "n must be at least 1. Received: n=0"),
        ({"size": 0}, "size must be at least 1. Received: size=0"),
        ({"epoch": -1}, "epoch must be at least 0. Received: epoch=-1"),
        ({"seed": -2}, "seed must be at least 0. Received: seed=-2"),
        ({"style": "half"}, "style must be one of whole, own. Received: style='half'"),
    ],
)
def test_shard_arguments(arguments, text):
    with pytest.raises(ValueError) as error:
        shard(**({"n": 10, "rank": 0, "size": 2} | arguments))
    assert str(error.value) == text


def test_steps():
    # 13 examples on 4 ranks: 4 each, so 2 batches of 3; 50,000 on 4: 12,500 = 97 * 128 + 84.
    assert [steps(13, 4, 3), steps(12, 4, 3), steps(50_000, 4, 128), steps(1, 8, 32)] == [
        2,
        1,
        98,
        1,
    ]
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: batch_size=0"):
        steps(10, 2, 0)


# Batches -----------------------------------------------------------------------------------------


def random_images(n, height=32, width=32, channels=3):
    return np.random.default_rng(7).integers(0, 256, (n, height, width, channels), np.uint8)


@pytest.mark.parametrize("style", STYLES)
def test_an_epoch_is_the_shard_in_order(style):
    images, labels = random_images(23), np.arange(23, dtype=np.uint8)
    source = Batches(images, labels, 4, rank=1, size=2, seed=9, style=style)
    for epoch in (0, 1, 5):
        chosen = shard(23, 1, 2, epoch=epoch, seed=9, style=style)
        batches = list(source.epoch(epoch))
        assert len(batches) == len(source) == 3
        assert [len(y) for _, y in batches] == [4, 4, 4]
        assert np.concatenate([y for _, y in batches]).tolist() == chosen.tolist()
        assert np.array_equal(np.concatenate([x for x, _ in batches]), images[chosen])
        assert {(x.dtype, y.dtype) for x, y in batches} == {(np.dtype("u1"), np.dtype("i8"))}


def test_last_batch_may_be_short():
    source = Batches(random_images(10), np.arange(10), 4)
    assert [len(y) for _, y in source.epoch(0)] == [4, 4, 2]


def test_get_is_the_same_batch_in_any_order():
    arguments = random_images(20), np.arange(20), 4
    in_order = list(Batches(*arguments, seed=1, augment=True).epoch(3))
    source = Batches(*arguments, seed=1, augment=True)
    for step in (4, 0, 2, 2, 3, 1):
        source.get(2, step)  # another epoch in between changes nothing
        x, y = source.get(3, step)
        assert np.array_equal(x, in_order[step][0]) and np.array_equal(y, in_order[step][1])


def test_examples_read_follows_what_was_handed_out():
    source = Batches(random_images(10), np.arange(10), 4)
    assert source.examples_read(0).dtype == np.int32 and source.examples_read(0).shape == (0,)
    source.get(0, 0)  # Keras looks at one batch before it starts
    for epoch in (0, 1):
        read = []
        for _, labels in source.epoch(epoch):
            read += labels.tolist()
            assert source.examples_read(epoch).tolist() == read
        assert source.examples_read(epoch).dtype == np.int32
        assert sorted(read) == list(range(10))


def test_what_is_read_again_is_not_read_twice():
    """Of the epoch that was read whole, as for the statistics of batch norm."""
    source = Batches(random_images(10), np.arange(10), 4)
    whole = np.concatenate([labels for _, labels in source.epoch(0)]).tolist()
    for step in (0, 1, 0):
        source.get(0, step)
        assert source.examples_read(0).tolist() == whole
    source.get(1, 0)
    source.get(1, 1)
    assert source.examples_read(0).tolist() == whole and len(source.examples_read(1)) == 8


def test_examples_read_is_kept_for_who_reads_ahead():
    source = Batches(random_images(10), np.arange(10), 4, seed=2)
    for epoch in range(9):
        list(source.epoch(epoch))
    assert source.examples_read(0).tolist() == []
    for epoch in range(1, 9):
        assert source.examples_read(epoch).tolist() == shard(10, 0, 1, epoch=epoch, seed=2).tolist()


def test_reading_ahead_and_again_counts_each_batch_once():
    """As a thread does that still reads ahead for an iterator that was given up."""
    source = Batches(random_images(10), np.arange(10), 4, seed=2)
    for epoch, step in ((0, 0), (0, 1), (0, 0), (0, 1), (0, 1), (0, 2), (1, 0)):
        source.get(epoch, step)
    assert source.examples_read(0).tolist() == shard(10, 0, 1, epoch=0, seed=2).tolist()
    assert len(source.examples_read(1)) == 4


def test_a_choice_is_no_reading():
    source = Batches(random_images(10), np.arange(10), 4, augment=True)
    images, labels = source.get(0, 1)
    choice = source.choose(1, 2)
    assert len(source.examples_read(1)) == 0 and len(source.examples_read(0)) == 4
    source.mark_as_read(choice)
    assert source.examples_read(1).tolist() == choice.indices.tolist()
    for given, wanted in zip(source.load(source.choose(0, 1)), (images, labels), strict=True):
        assert np.array_equal(given, wanted)


def candidates(image):
    """All 50 augmentations of one image, the slow way: {(flipped, down, right): image}."""
    height, width, _ = image.shape
    found = {}
    for flipped in (False, True):
        source = np.stack([row[::-1] for row in image]) if flipped else image
        padded = np.pad(source, ((2, 2), (2, 2), (0, 0)), mode="reflect")
        for down in range(-2, 3):
            for right in range(-2, 3):
                crop = padded[2 - down : 2 - down + height, 2 - right : 2 - right + width]
                found[flipped, down, right] = crop.tobytes()
    return found


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (6, 9, 2)])
def test_augmentation_is_a_flip_an_image_and_a_shift_a_batch(shape):
    images = random_images(60, *shape)
    before = images.copy()
    source = Batches(images, np.arange(60), 6, augment=True)
    flips, shifts = [], []
    for epoch in range(3):
        for batch, labels in source.epoch(epoch):
            assert batch.shape == (6, *shape) and batch.flags.c_contiguous
            matches = []
            for image, n in zip(batch, labels, strict=True):
                found = [k for k, v in candidates(images[n]).items() if v == image.tobytes()]
                assert len(found) == 1  # exactly one of the 50
                matches += found
            assert len({match[1:] for match in matches}) == 1
            flips += [match[0] for match in matches]
            shifts.append(matches[0][1:])
    assert 60 < sum(flips) < 120  # of 180
    assert {down for down, _ in shifts} == {right for _, right in shifts} == {-2, -1, 0, 1, 2}
    assert len(set(shifts)) > 10  # of 25: down and right are drawn apart
    assert np.array_equal(images, before)  # the data set itself stays as it was


def test_augmentation_differs_between_ranks_epochs_steps_and_seeds():
    images, labels = np.repeat(random_images(1), 512, axis=0), np.zeros(512)

    def batch(epoch=0, step=0, **arguments):
        return Batches(images, labels, 64, augment=True, **arguments).get(epoch, step)[0].tobytes()

    batches = [
        batch(),
        batch(epoch=1),
        batch(step=1),
        batch(seed=1),
        batch(rank=0, size=2),
        batch(rank=1, size=2),
    ]
    assert batches[0] == batches[4]  # rank 0 is rank 0, however many there are
    assert len(set(batches)) == 5
    assert batch() == batches[0]


def test_batches_arguments():
    images, labels = random_images(4), np.arange(4)
    with pytest.raises(ValueError, match="Received: 4 images, 3 labels"):
        Batches(images, labels[:3], 2)
    with pytest.raises(ValueError, match="rank must be in 0..size-1. Received: rank=2, size=2"):
        Batches(images, labels, 2, rank=2, size=2)
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: batch_size=0"):
        Batches(images, labels, 0)
    with pytest.raises(ValueError, match="style must be one of whole, own. Received: style='a'"):
        Batches(images, labels, 2, style="a")
    with pytest.raises(ValueError, match=r"step must be in 0..1. Received: step=2"):
        Batches(images, labels, 2).get(0, 2)


def test_the_example_in_the_docstring():
    result = doctest.testmod(module)
    assert result.attempted == 2 and result.failed == 0
