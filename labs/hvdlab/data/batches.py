"""Shard a data set: choose which examples each rank of a run reads, in which order and in which batches.

Every rank takes the same number of steps. In synchronous training, if one rank had no data left, the other
ranks would wait for it in the next all-reduce for ever. There are two styles:

    whole   a new permutation of the whole data set in each epoch, and every size-th example of it for each
            rank. In the course of a run every rank reads all examples (as with torch's DistributedSampler).
    own     one permutation for the whole run. A rank keeps its shard and only reshuffles it in each epoch.
            So it needs only 1/size of the data set on its disk (as with tf.data's shard()).

All random numbers depend only on (seed, epoch, rank, step), so a run can be repeated and checked.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hvdlab import probe_mode
from hvdlab.data.files import Dataset, load_cifar10

STYLES = ("whole", "own")
MAX_SHIFT = 2  # pixels
KEPT_EPOCHS = 8


@dataclass(frozen=True)
class Augmentation:
    """The random augmentation of one batch of b images.

    Attributes:
        flipped: bool of shape (b,): which images are mirrored left to right.
        down: pixels by which all images are then moved down, from -2 to 2. Reflection fills the gap.
        right: pixels by which all images are then moved right, from -2 to 2.
    """

    flipped: np.ndarray
    down: int
    right: int


@dataclass(frozen=True)
class Choice:
    """The choice of examples for one batch, before any pixel is read.

    Attributes:
        epoch: number of the epoch.
        step: number of the batch in the epoch.
        indices: int64 of shape (b,): the examples, as indices into the data set.
        augmentation: None: the images are not changed.
    """

    epoch: int
    step: int
    indices: np.ndarray
    augmentation: Augmentation | None


def shard(
    n: int, rank: int, size: int, *, epoch: int = 0, seed: int = 0, style: str = "whole"
) -> np.ndarray:
    """Return the indices that `rank` reads in `epoch`: int64 of shape (ceil(n / size),).

    The shards of all ranks together contain each of the n examples. If n is not a multiple of `size`, the
    first few examples are in two shards, so that all shards have the same length.

    Args:
        n: number of examples in the data set.
        rank: from 0 to size - 1.
        size: number of ranks.
        epoch: number of the epoch. Default 0.
        seed: the same on all ranks. Default 0.
        style: "whole" (default) or "own", as explained at the top of this module.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_at_least("n", n, 1)
    _check_at_least("size", size, 1)
    _check_at_least("epoch", epoch, 0)
    _check_at_least("seed", seed, 0)
    if not 0 <= rank < size:
        raise ValueError(f"rank must be in 0..size-1. Received: rank={rank}, size={size}")
    if style not in STYLES:
        raise ValueError(f"style must be one of {', '.join(STYLES)}. Received: style={style!r}")

    # The same generator on all ranks gives the same permutation, without communication.
    order = np.random.default_rng([seed, epoch if style == "whole" else 0]).permutation(n)
    positions = rank + size * np.arange(_ceil_div(n, size))
    mine = order[positions % n]
    if style == "own":
        # 1 + rank, because NumPy pads a seed with zeros, so [seed, epoch, 0] equals [seed, epoch].
        mine = np.random.default_rng([seed, epoch, 1 + rank]).permutation(mine)
    return mine


def steps(n: int, size: int, batch_size: int) -> int:
    """Return the number of steps of one epoch, which is the same on each rank.

        ceil(ceil(n / size) / batch_size)

    Args:
        n: number of examples in the data set.
        size: number of ranks.
        batch_size: examples per step and rank.

    Raises:
        ValueError: an argument is less than 1.
    """
    _check_at_least("n", n, 1)
    _check_at_least("size", size, 1)
    _check_at_least("batch_size", batch_size, 1)
    return _ceil_div(_ceil_div(n, size), batch_size)


class Batches:
    """The batches of one rank, from a data set in memory. They are NumPy arrays, for any framework.

    Args:
        images: uint8, shape (n, height, width, channels).
        labels: integers, shape (n,).
        batch_size: examples per step on this rank. The last batch of an epoch may be smaller.
        rank: as in `shard`. Default 0.
        size: as in `shard`. Default 1.
        seed: as in `shard`. Default 0.
        style: as in `shard`. Default "whole".
        augment: flip each image left to right with probability 1/2, and move all images of a batch
            by one random shift of -2..2 pixels in each direction, filled by reflection. Default False.

    Raises:
        ValueError: an argument is out of range, or the numbers of images and labels differ.

    Example:
        >>> batches = Batches(np.zeros((10, 8, 8, 3), np.uint8), np.arange(10), 4, rank=0, size=2)
        >>> [len(labels) for images, labels in batches.epoch(0)]
        [4, 1]
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        batch_size: int,
        *,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        style: str = "whole",
        augment: bool = False,
    ) -> None:
        if len(images) != len(labels):
            raise ValueError(
                "there must be as many labels as images. "
                f"Received: {len(images)} images, {len(labels)} labels"
            )
        self.images, self.labels = images, labels.astype(np.int64)
        self.batch_size, self.rank, self.size = batch_size, rank, size
        self.seed, self.style, self.augment = seed, style, augment
        self._steps, self._taken = steps(len(images), size, batch_size), batch_size
        self._order = 0, self._shard(0)  # (epoch, its order); this also checks rank, seed and style
        self._read: dict[int, dict[int, np.ndarray]] = {}  # epoch -> step -> indices
        self.snapshots: probe_mode.Snapshots | None = None  # of a recorder, in the grader's probe
        self._requested = 0
        if probe_mode.COPIES:
            self._enter_probe()

    def __len__(self) -> int:
        """Return the number of steps of one epoch."""
        return self._steps

    def epoch(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the batches of one epoch, as `get` returns them.

        Args:
            epoch: number of the epoch, from 0.
        """
        for step in range(len(self)):
            yield self.get(epoch, step)

    def get(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one batch, and count it among the `examples_read` of its epoch.

        The steps can be read in any order; the same step always gives the same batch. Reading step 0 of an
        epoch resets `examples_read` of this epoch, unless all of its steps have been read.

        Args:
            epoch: number of the epoch, from 0.
            step: number of the batch in the epoch, from 0.

        Returns:
            Images, uint8 of shape (b, height, width, channels), and labels, int64 of shape (b,).

        Raises:
            ValueError: the epoch has no such step.
        """
        choice = self.choose(epoch, step)
        self.mark_as_read(choice)
        return self.load(choice)

    def choose(self, epoch: int, step: int) -> Choice:
        """Return the choice of examples for a batch, for a caller that loads the images itself.

        Args:
            epoch: number of the epoch, from 0.
            step: number of the batch in the epoch, from 0.

        Raises:
            ValueError: the epoch has no such step.
        """
        if not 0 <= step < len(self):
            raise ValueError(f"step must be in 0..{len(self) - 1}. Received: step={step}")
        if self.snapshots:
            self.snapshots.before_batch(self._requested)
        self._requested += 1
        kept, order = self._order
        if kept != epoch:
            order = self._shard(epoch)
            self._order = epoch, order
        indices = order[step * self._taken : (step + 1) * self._taken]
        drawn = None
        if self.augment:
            rng = np.random.default_rng([self.seed, epoch, 1 + self.rank, 1 + step])
            flipped = rng.random(len(indices)) < 0.5
            drawn = Augmentation(
                flipped, *map(int, rng.integers(-MAX_SHIFT, MAX_SHIFT + 1, size=2))
            )
        return Choice(epoch, step, indices, drawn)

    def load(self, choice: Choice) -> tuple[np.ndarray, np.ndarray]:
        """Return the images and labels of a choice, as `get` does."""
        images = self.images[choice.indices]
        if choice.augmentation:
            images = augmented(images, choice.augmentation)
        return images, self.labels[choice.indices]

    def mark_as_read(self, choice: Choice) -> None:
        """Count a batch among the `examples_read` of its epoch."""
        epoch, step = choice.epoch, choice.step
        whole = len(self._read.get(epoch, ())) == len(self)
        if step == 0:
            self._read = {
                e: read
                for e, read in self._read.items()
                if epoch - KEPT_EPOCHS < e < epoch or (whole and e == epoch)
            }
        if not whole:  # batches that are read again, as for batch-norm statistics, are not training
            self._read.setdefault(epoch, {})[step] = choice.indices

    def examples_read(self, epoch: int) -> np.ndarray:
        """Return the indices read in `epoch`, in order of its steps: int32 of shape (m,).

        They are kept for the latest eight epochs, because a caller may read batches in advance.

        Args:
            epoch: number of the epoch, from 0. The result is empty for an epoch that is not kept.
        """
        read = self._read.get(epoch, {})
        in_order = [read[step] for step in sorted(read)]
        return np.concatenate([np.empty(0, np.int32), *in_order]).astype(np.int32)

    def _enter_probe(self) -> None:
        """Make batches that differ between ranks and runs only in their labels (`hvdlab.probe_mode`)."""
        own = _probe_data(probe_mode.FOLDER)
        is_test = any(np.array_equal(self.images[0], image) for image in own.test_images)
        if not is_test:
            self.images, self.labels = own.train_images, own.train_labels.astype(np.int64)
        elif not probe_mode.STEPS:
            return
        n = max(1, len(self.images) // probe_mode.COPIES)
        self._steps = probe_mode.STEPS or self._steps
        distinct = n // self._steps if probe_mode.STEPS else n
        batch_size = probe_mode.batch_size(self.batch_size, distinct)
        self._taken = batch_size * probe_mode.COPIES_IN_BATCH
        copies = np.arange(probe_mode.COPIES_IN_BATCH)[:, None]

        def order(epoch: int) -> np.ndarray:
            images = np.random.default_rng([probe_mode.SEED, epoch]).permutation(n)
            whole = np.resize(images, (self._steps, 1, batch_size)) * probe_mode.COPIES + copies
            whole = whole.swapaxes(1, 2) if probe_mode.IN_TURNS else whole
            return whole.ravel() % len(self.images)

        self.augment, self._shard = False, order
        self._order = 0, order(0)

    def _shard(self, epoch: int) -> np.ndarray:
        return shard(
            len(self.images), self.rank, self.size, epoch=epoch, seed=self.seed, style=self.style
        )


@functools.cache
def _probe_data(folder: str) -> Dataset:
    """Return the data set that the grader's probe gives to this rank."""
    return load_cifar10(folder)


def augmented(images: np.ndarray, augmentation: Augmentation) -> np.ndarray:
    """Return images of which some are mirrored and all are moved.

    Args:
        images: uint8 of shape (b, height, width, channels). They are overwritten.
        augmentation: which images to mirror, and how far to move all of them.
    """
    flipped = np.flatnonzero(augmentation.flipped)
    chosen = images[flipped]
    mirrored = np.empty_like(chosen)
    for channel in range(
        images.shape[3]
    ):  # long strided copies are 3x faster than copies of pixels
        mirrored[..., channel] = chosen[:, :, ::-1, channel]
    images[flipped] = mirrored

    # One shift per batch needs only a few long copies. One shift per image would need a gather.
    return _shifted(_shifted(images, augmentation.down, axis=1), augmentation.right, axis=2)


def _shifted(images: np.ndarray, by: int, axis: int) -> np.ndarray:
    """Return images moved by `by` pixels along an axis, with the gap filled as np.pad's "reflect" does."""
    shifted = np.empty_like(images)
    old, new = images.swapaxes(axis, 0), shifted.swapaxes(axis, 0)  # views with the axis in front
    if by >= 0:
        new[by:] = old[: len(old) - by]
        new[:by] = old[by:0:-1]
    else:
        new[:by] = old[-by:]
        new[by:] = old[-2 : by - 2 : -1]
    return shifted


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}. Received: {name}={value}")
