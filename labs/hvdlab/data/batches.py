"""Deal a data set to the ranks of a run: which examples, in which order, in batches.

Every rank takes the same number of steps: in synchronous training a rank that runs out of data
early would leave the others waiting in the next all-reduce for ever. Two ways of dealing:

    whole   each epoch one new permutation of the whole set, dealt like cards: in the course of a
            run every rank reads all of the set (what torch's DistributedSampler does)
    own     one permutation for the run: a rank keeps its hand and only reshuffles it each epoch,
            so it needs no more than 1/size of the set on its disk (what tf.data's shard() does)

All that is random follows from (seed, epoch, rank, step), so a run can be repeated and checked.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hvdlab import probe_mode

STYLES = ("whole", "own")
MAX_SHIFT = 2  # pixels
KEPT_EPOCHS = 8


@dataclass(frozen=True)
class Augmentation:
    """The random numbers of one batch of b images.

    Attributes:
        flipped: bool of shape (b,): which images are mirrored left to right.
        down, right: pixels by which all images then move, each from -2 to 2; reflection fills the rest.
    """

    flipped: np.ndarray
    down: int
    right: int


@dataclass(frozen=True)
class Choice:
    """What one batch consists of, before any pixel is read.

    Attributes:
        epoch, step: of the batch.
        indices: int64 of shape (b,): its examples in the data set.
        augmentation: None without one.
    """

    epoch: int
    step: int
    indices: np.ndarray
    augmentation: Augmentation | None


def shard(
    n: int, rank: int, size: int, *, epoch: int = 0, seed: int = 0, style: str = "whole"
) -> np.ndarray:
    """Return the indices that `rank` reads in `epoch`: int64 of shape (ceil(n / size),).

    The shards of all ranks together hold every one of the n examples. Where n is not a multiple of
    size, the first few are dealt twice so that all shards are equal in length. Raises ValueError.
    """
    _check_at_least("n", n, 1)
    _check_at_least("size", size, 1)
    _check_at_least("epoch", epoch, 0)
    _check_at_least("seed", seed, 0)
    if not 0 <= rank < size:
        raise ValueError(f"rank must be in 0..size-1. Received: rank={rank}, size={size}")
    if style not in STYLES:
        raise ValueError(f"style must be one of {', '.join(STYLES)}. Received: style={style!r}")

    # One generator on all ranks: the same permutation everywhere, without a message sent.
    dealt = np.random.default_rng([seed, epoch if style == "whole" else 0]).permutation(n)
    positions = rank + size * np.arange(_ceil_div(n, size))
    mine = dealt[positions % n]
    if style == "own":
        # 1 + rank, because numpy pads a seed with zeros: [seed, epoch, 0] would be [seed, epoch].
        mine = np.random.default_rng([seed, epoch, 1 + rank]).permutation(mine)
    return mine


def steps(n: int, size: int, batch_size: int) -> int:
    """Return the steps of one epoch, the same on each rank: ceil(ceil(n / size) / batch_size)."""
    _check_at_least("n", n, 1)
    _check_at_least("size", size, 1)
    _check_at_least("batch_size", batch_size, 1)
    return _ceil_div(_ceil_div(n, size), batch_size)


class Batches:
    """One rank's batches of a data set in memory, for either framework.

    Args:
        images: uint8, shape (n, height, width, channels).
        labels: integers, shape (n,).
        batch_size: examples a step on this rank; the last batch of an epoch may be shorter.
        rank, size, seed, style: as in `shard`.
        augment: flip each image left to right with probability 1/2, and move all images of a batch
            by one random shift of -2..2 pixels each way, filled by reflection.

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
    ):
        if len(images) != len(labels):
            raise ValueError(
                "images and labels must be equally many. "
                f"Received: {len(images)} images, {len(labels)} labels"
            )
        self.images, self.labels = images, labels.astype(np.int64)
        self.batch_size, self.rank, self.size = batch_size, rank, size
        self.seed, self.style, self.augment = seed, style, augment
        self._steps, self._taken = steps(len(images), size, batch_size), batch_size
        self._order = 0, self._shard(0)  # of one epoch; also checks rank, seed and style right here
        if probe_mode.COPIES:
            self._deal_for_probe()
        self._read: dict[int, dict[int, np.ndarray]] = {}  # epoch -> step -> indices

    def __len__(self) -> int:
        """Return the steps of one epoch."""
        return self._steps

    def epoch(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the batches of one epoch, as `get` returns them."""
        for step in range(len(self)):
            yield self.get(epoch, step)

    def get(self, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one batch: images uint8 of shape (b, height, width, channels), labels int64 (b,).

        Any step can be asked for and is always the same. `examples_read` of an epoch begins again with
        its step 0, unless it has been read to its end.
        """
        choice = self.choose(epoch, step)
        self.mark_as_read(choice)
        return self.load(choice)

    def choose(self, epoch: int, step: int) -> Choice:
        """Return what `get` would read, for a caller that reads the images by itself, later or on a GPU."""
        if not 0 <= step < len(self):
            raise ValueError(f"step must be in 0..{len(self) - 1}. Received: step={step}")
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
        if not whole:  # what is read again, as for the statistics of batch norm, is no training
            self._read.setdefault(epoch, {})[step] = choice.indices

    def examples_read(self, epoch: int) -> np.ndarray:
        """The indices handed out in `epoch`, in order of its steps: int32 of shape (m,).

        Known for the latest eight epochs, as somebody may read ahead; of others, nothing.
        """
        read = self._read.get(epoch, {})
        in_order = [read[step] for step in sorted(read)]
        return np.concatenate([np.empty(0, np.int32), *in_order]).astype(np.int32)

    def _deal_for_probe(self) -> None:
        """See `hvdlab.probe_mode`: batches that differ between ranks and runs in nothing but labels."""
        n = max(1, len(self.images) // probe_mode.COPIES)
        batch_size = probe_mode.batch_size(self.batch_size, n)
        self._steps, self._taken = probe_mode.STEPS, batch_size * probe_mode.DEALT
        copies = np.arange(probe_mode.DEALT)[:, None]

        def order(epoch):
            dealt = np.random.default_rng([probe_mode.SEED, epoch]).permutation(n)
            whole = np.resize(dealt, (self._steps, 1, batch_size)) * probe_mode.COPIES + copies
            whole = whole.swapaxes(1, 2) if probe_mode.IN_TURNS else whole
            return whole.ravel() % len(self.images)

        self.augment, self._shard = False, order
        self._order = 0, order(0)

    def _shard(self, epoch):
        return shard(
            len(self.images), self.rank, self.size, epoch=epoch, seed=self.seed, style=self.style
        )


def augmented(images: np.ndarray, augmentation: Augmentation) -> np.ndarray:
    """Mirror some images, and move all: uint8 (b, height, width, channels), which are overwritten."""
    flipped = np.flatnonzero(augmentation.flipped)
    chosen = images[flipped]
    mirrored = np.empty_like(chosen)
    for channel in range(images.shape[3]):  # long strided copies: 3x faster than whole pixels
        mirrored[..., channel] = chosen[:, :, ::-1, channel]
    images[flipped] = mirrored

    # One shift a batch is a few long copies; a shift an image would cost a gather.
    return _shifted(_shifted(images, augmentation.down, axis=1), augmentation.right, axis=2)


def _shifted(images, by, axis) -> np.ndarray:
    """Move all images by `by` pixels along an axis; np.pad's "reflect" fills what comes free."""
    shifted = np.empty_like(images)
    old, new = images.swapaxes(axis, 0), shifted.swapaxes(axis, 0)  # views with the axis in front
    if by >= 0:
        new[by:] = old[: len(old) - by]
        new[:by] = old[by:0:-1]
    else:
        new[:by] = old[-by:]
        new[by:] = old[-2 : by - 2 : -1]
    return shifted


def _ceil_div(a, b) -> int:
    return -(-a // b)


def _check_at_least(name, value, least) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}. Received: {name}={value}")
