"""Checks of lab 10: throughput of an input pipeline, vectorised augmentation, sharded reading."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from hvdlab.course.input_pipeline import PAD, augment_image, draw
from hvdlab.exercises import NotYet, call, call_unchanged, compare, exercise, number, right

SHARDS = [f"shard_{number:03d}.tar" for number in range(8)]
LEAST_GAIN = 2.0


@exercise
def check_images_per_second(images_per_second: Callable) -> None:
    """Demand the sum of the times without workers, and the longest of three times with workers.

    Args:
        images_per_second: The learner's `images_per_second(batch_size, load, train, workers, cores)`.
    """
    for load, train, workers, cores in (
        (0.03, 0.01, 0, 2),
        (0.03, 0.01, 1, 2),
        (0.03, 0.01, 2, 2),
        (0.04, 0.01, 2, 16),
        (0.04, 0.01, 16, 16),
    ):
        case = (
            f"images_per_second(128, load={load}, train={train}, workers={workers}, cores={cores})"
        )
        answer = number(call(images_per_second, 128, load, train, workers, cores), case)
        both = load + train
        if workers == 0:
            expected = 128 / both
            mistakes = {
                "Without workers one process does both, one after the other: add the times.": 128
                / max(load, train),
            }
        else:
            expected = 128 / max(load / workers, train, both / cores)
            mistakes = {
                "With workers the training does not wait for the whole loading time: take the longest of the "
                "three times, not the sum.": [128 / both, 128 / (load / workers + train)],
                "Three processes share two cores: the work of a step needs at least (load + train) / cores.":
                    128 / max(load / workers, train),
                "The workers load different batches at the same time: divide the loading time by workers.":
                    128 / max(load, train, both / cores),
                "The training limits the throughput too: it is one of the three times.":
                    128 / max(load / workers, both / cores),
                "The slowest part decides: take the longest of the three times, not the shortest.":
                    128 / min(load / workers, train, both / cores),
            }  # fmt: skip
        mistakes["That is the time of a step: divide the batch size by it."] = 128 / expected
        mistakes["That is the number of steps per second: multiply it by the batch size."] = (
            expected / 128
        )
        compare(case, answer, expected, mistakes, "See the worked example above the exercise.")
    right("the sum without workers, and with workers the longest of three times.")


@exercise
def check_augment_batch(augment_batch: Callable) -> None:
    """Demand the images that `augment_image` gives, for windows at all places.

    Args:
        augment_batch: The learner's `augment_batch(images, flipped, top, left)`.
    """
    random = np.random.default_rng(0)
    images = random.integers(256, size=(81, 6, 8, 3)).astype(np.uint8)
    top, left = (axis.ravel() for axis in np.mgrid[: 2 * PAD + 1, : 2 * PAD + 1])
    flipped = random.random(81) < 0.5
    answer = call_unchanged(augment_batch, images, flipped, top, left)
    if not isinstance(answer, np.ndarray):
        raise NotYet(f"augment_batch must return an array of NumPy. Received: {answer!r}")
    if answer.shape != images.shape:
        raise NotYet(
            f"for images of shape {images.shape} the result has shape {answer.shape}. The axes are image, "
            "row, column, channel; a sliding window appends its rows and columns at the end."
        )
    if answer.dtype != np.uint8:
        raise NotYet(f"the images are uint8, and the result is {answer.dtype}: keep the type.")
    middle = np.full(81, PAD)
    mistakes = {
        "No image is mirrored: flipped says which ones to mirror.": (~flipped & flipped, top, left),
        "All images are mirrored: flipped says which ones to mirror.": (flipped | True, top, left),
        "The wrong images are mirrored: those with flipped = True are mirrored.": (
            ~flipped,
            top,
            left,
        ),
        "top and left are swapped: top is the first row, left is the first column.": (
            flipped,
            left,
            top,
        ),
        "All windows begin in the middle: use top and left.": (flipped, middle, middle),
        "All images have the window of the first one: each image has its own top and left.": (
            flipped,
            top[:1].repeat(81),
            left[:1].repeat(81),
        ),
    }
    if np.array_equal(answer, _one_by_one(images, flipped, top, left)):
        right("81 windows at all places, equal to augment_image to the last byte.")
        return
    for sentence, drawn in mistakes.items():
        if np.array_equal(answer, _one_by_one(images, *drawn)):
            raise NotYet(sentence)
    upside_down = np.where(flipped[:, None, None, None], answer[:, ::-1, ::-1], answer)
    if np.array_equal(upside_down, _one_by_one(images, flipped, top, left)):
        raise NotYet("The images are mirrored upside down: mirror the columns, not the rows.")
    _name_first_difference(answer, images, flipped, top, left)


def _name_first_difference(
    answer: np.ndarray, images: np.ndarray, flipped: np.ndarray, top: np.ndarray, left: np.ndarray
) -> None:
    expected = _one_by_one(images, flipped, top, left)
    wrong = np.flatnonzero((answer != expected).any(axis=(1, 2, 3)))
    first = wrong[0]
    raise NotYet(
        f"{len(wrong)} of {len(images)} images differ from augment_image, the first is image {first} with "
        f"flipped={bool(flipped[first])}, top={top[first]}, left={left[first]}. Is the padding a reflection, "
        "and is the window cut out before it is mirrored?"
    )


def _one_by_one(
    images: np.ndarray, flipped: np.ndarray, top: np.ndarray, left: np.ndarray
) -> np.ndarray:
    return np.stack([augment_image(*each) for each in zip(images, flipped, top, left, strict=True)])


class _Stream(IterableDataset):
    def __init__(self, make: Callable[[], Iterable]) -> None:
        self.make = make

    def __iter__(self) -> Iterable:
        return iter(self.make())


@exercise
def check_my_shards(my_shards: Callable) -> None:
    """Demand that every shard is read once over all ranks and workers, and evenly.

    Args:
        my_shards: The learner's generator `my_shards(shards, rank, size)`.
    """

    def read(rank: int, size: int, workers: int) -> list:
        def shards() -> list:
            answer = my_shards(SHARDS, rank, size)
            if answer is None:
                raise NotYet(
                    "my_shards returned None: write a generator with `yield`, or return a list."
                )
            return list(answer)

        if workers == 0:
            return shards()
        own = {"num_workers": workers, "multiprocessing_context": "fork"}
        return list(DataLoader(_Stream(shards), batch_size=None, **own))

    for size, workers in ((1, 0), (2, 0), (1, 2), (2, 2)):
        case = f"{len(SHARDS)} shards, {size} rank{'s' * (size > 1)}, {workers or 'no'} workers"
        parts = [
            call(read, rank, size, workers, name=f"my_shards(shards, {rank}, {size})")
            for rank in range(size)
        ]
        found = Counter(shard for part in parts for shard in part)
        if set(found) - set(SHARDS):
            raise NotYet(f"{case}: yield the given paths. Received: {sorted(set(found))[:3]}")
        times = max(found.values(), default=0)
        if times > 1 and size > 1 and times == workers * size:
            raise NotYet(
                f"{case}: each shard is read {times} times, once by every reader. Divide them by rank and by "
                "worker."
            )
        if times > 1 and workers and times == workers:
            raise NotYet(
                f"{case}: each shard is read {times} times, once by every worker of a rank. Every worker "
                "has a copy of the dataset: use get_worker_info()."
            )
        if times > 1:
            raise NotYet(f"{case}: a shard is read {times} times. Use rank and size.")
        missing = len(SHARDS) - len(found)
        if missing:
            raise NotYet(
                f"{case}: {missing} shards are read by no reader. Is the step of the slice the number of all "
                "readers, size * num_workers, and are the readers numbered from 0 without gaps?"
            )
        lengths = [len(part) for part in parts]
        if len(set(lengths)) > 1:
            raise NotYet(f"{case}: the ranks read {lengths} shards. They must read equally many.")
    right("8 shards, each read exactly once with 1 and 2 ranks, without workers and with 2.")


@exercise
def check_load_on_node(load_on_node: Callable) -> None:
    """Demand download, barrier, load on local rank 0, and barrier, load on the other ranks.

    Args:
        load_on_node: The learner's `load_on_node(local_rank, download, barrier, load)`.
    """
    for local_rank in (0, 1, 2):
        calls: list[str] = []

        def recorded(name: str, calls: list[str] = calls) -> Callable[[], str]:
            return lambda: (calls.append(name), f"result of {name}")[1]

        steps = [recorded(name) for name in ("download", "barrier", "load")]
        result = call(load_on_node, local_rank, *steps)
        expected = ["download", "barrier", "load"][local_rank > 0 :]
        case = f"on local rank {local_rank} the calls are {calls}, expected {expected}."
        if calls.count("barrier") != 1:
            raise NotYet(
                f"{case} Every rank must reach the barrier exactly once, or the others wait for ever."
            )
        if local_rank and "download" in calls:
            raise NotYet(f"{case} Only local rank 0 downloads.")
        if not local_rank and "download" not in calls:
            raise NotYet(f"{case} One rank of each node must download: local rank 0.")
        if "load" not in calls:
            raise NotYet(f"{case} Every rank needs the data: call load() on all of them.")
        if calls != expected and calls.index("load") < calls.index("barrier"):
            raise NotYet(
                f"{case} A rank that loads before the barrier may read a file that is only half written."
            )
        if calls != expected:
            raise NotYet(
                f"{case} If the barrier comes before the download, the other ranks load too early."
            )
        if result != "result of load":
            raise NotYet(
                f"on local rank {local_rank} load_on_node must return what load() returns. "
                f"Received: {result!r}"
            )
    right("one download per node, and every rank loads after the barrier.")


@exercise
def check_array_batches(array_batches: Callable) -> None:
    """Demand that an epoch contains each image once, in a random order, augmented, as uint8 tensors.

    Args:
        array_batches: The learner's generator `array_batches(images, labels, batch_size, random)`.
    """
    labels = np.arange(10)
    images = (labels[:, None, None, None] * np.ones((1, 8, 8, 3))).astype(np.uint8)
    batches = call(
        lambda *arguments: list(array_batches(*arguments)),
        *(images, labels, 4, np.random.default_rng(0)),
        name="array_batches",
    )
    if not all(
        isinstance(batch, tuple) and len(batch) == 2 and all(map(torch.is_tensor, batch))
        for batch in batches
    ):
        raise NotYet("array_batches must yield pairs of tensors, (images, labels).")
    sizes = [len(batch[1]) for batch in batches]
    if sizes != [4, 4, 2]:
        raise NotYet(
            f"10 images in batches of 4 give {sizes}, expected [4, 4, 2]: the last batch is smaller."
        )
    first = batches[0][0]
    if first.dtype != torch.uint8 or tuple(first.shape) != (4, 8, 8, 3):
        raise NotYet(
            f"the images of a batch are {first.dtype} of shape {tuple(first.shape)}, expected torch.uint8 of "
            "shape (4, 8, 8, 3). The training step converts them."
        )
    order = torch.cat([batch[1] for batch in batches]).tolist()
    if sorted(order) != list(range(10)):
        raise NotYet(f"the labels of an epoch are {order}: each example must appear exactly once.")
    if order == list(range(10)):
        raise NotYet("the examples come in the order of the array: use random.permutation.")
    for batch_images, batch_labels in batches:
        if not torch.equal(batch_images[:, 0, 0, 0].long(), batch_labels.long()):
            raise NotYet(
                "images and labels do not belong together: use the same indices for both of them."
            )
    _check_augmentation(array_batches)
    right("10 images in batches of 4, 4 and 2, each once, in a random order, augmented.")


def _check_augmentation(array_batches: Callable) -> None:
    """Demand that the images are windows of the padded images, at places that differ between images."""
    image = np.random.default_rng(1).integers(256, size=(8, 8, 3)).astype(np.uint8)
    same = np.repeat(image[None], 32, axis=0)
    ((changed, _),) = list(array_batches(same, np.arange(32), 32, np.random.default_rng(0)))
    different = {one.tobytes() for one in changed.numpy()}
    possible = {
        augment_image(image, flipped, top, left).tobytes()
        for flipped in (False, True)
        for top in range(2 * PAD + 1)
        for left in range(2 * PAD + 1)
    }
    if different == {image.tobytes()}:
        raise NotYet("the images are not augmented: call augment_batch with what draw returns.")
    if not different <= possible:
        raise NotYet("some images are no windows of their padded images: see exercise 2.")
    expected = {augment_image(image, *each).tobytes() for each in zip(*_redrawn(32), strict=True)}
    if len(different) < len(expected) / 2:
        raise NotYet(
            f"32 copies of one image become {len(different)} different images only: draw an augmentation for "
            "each image of the batch, draw(random, len(chosen))."
        )


def _redrawn(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return draw(np.random.default_rng(0), count)


@exercise
def check_throughput(before: float, after: float, bound: float) -> None:
    """Demand that the learner's loader at least doubles the throughput of the training.

    Args:
        before: Images per second with the first loader.
        after: Images per second with the learner's loader.
        bound: Images per second with a loader that serves zeros.
    """
    gain = after / before
    numbers = f"{before:,.0f} images/s before, {after:,.0f} after, {bound:,.0f} with zeros"
    if gain < LEAST_GAIN:
        raise NotYet(
            f"{numbers}: the gain is {gain:.1f}, expected at least {LEAST_GAIN:g}. Is there a Python loop "
            "over the images, or a conversion of each image? Run the cell again if other programs run."
        )
    right(
        f"{numbers}. The gain is {gain:.1f}, and {after / bound:.0%} of the upper bound are reached."
    )
