"""What a graded run sees of the data, and what stays with the grader.

Both follow from one secret number that is drawn anew for each grading:

* Half of the test images, the *hidden* ones, are given to no run. On them held-out accuracy is
  computed. The other half is what a run finds as test images (each twice: the files keep their size).
* The ten classes change names. Weights that somebody trained elsewhere and put into a script call
  the classes by their old names, and are wrong.

The probe (`hvdlab.probe`) needs more: one set of images, which each rank gets with labels from a few
classes of its own. A network can tell a class that its rank never saw only if it was told about it.
Each image is there once for each rank, so that a set with the labels of all ranks is as large.
"""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from hvdlab.data import (
    CIFAR10_BINS,
    CIFAR10_FOLDER,
    CIFAR10_NAMES,
    SAMPLE_MARKER,
    SYNTHETIC_MARKER,
    Dataset,
)
from hvdlab.probe import STEPS

CLASSES = 10
PROBE_IMAGES = 1920
PROBE_TEST_IMAGES = 500
LARGEST_SET = (
    8192  # of the probe, 25 MB for each rank; with larger batches whoever counts steps makes fewer
)
GROUPS = 5  # with more ranks than this some share their classes: each has at least two
MOST_ALIKE = 200  # more than any profile has ranks for


@dataclass(frozen=True)
class Secrets:
    """What a run must not know. `names[c]`: what class c is called; `hidden`: test images.

    `splits`: (., CLASSES), for each GROUPS ranks an order of the classes, see `labels_of`.
    """

    names: np.ndarray
    hidden: np.ndarray
    probe: np.ndarray  # training images of the probe
    splits: np.ndarray

    @classmethod
    def draw(cls, seed: int, train: int = 50_000, test: int = 10_000) -> "Secrets":
        """The secrets that follow from `seed`, for so many training and test images."""
        rng = np.random.default_rng([seed, 1])
        names = rng.permutation(CLASSES).astype(np.uint8)
        hidden = np.sort(rng.permutation(test)[: test // 2])
        probe = rng.permutation(train)[:PROBE_IMAGES]
        splits = rng.permuted(np.tile(np.arange(CLASSES), (MOST_ALIKE, 1)), axis=1)
        return cls(names, hidden, probe, splits)


def is_sample(data: Dataset) -> bool:
    return len(data.train_labels) + len(data.test_labels) != 60_000


def for_run(data: Dataset, secrets: Secrets, folder: Path) -> Path:
    """Write what the graded run sees to `folder`/cifar-10-batches-bin; return `folder`."""
    shown = np.setdiff1d(np.arange(len(data.test_labels)), secrets.hidden)
    shown = np.resize(shown, len(data.test_labels))
    return write(
        folder,
        renamed(data, secrets),
        (data.train_images, secrets.names[data.train_labels]),
        (data.test_images[shown], secrets.names[data.test_labels[shown]]),
        sample=is_sample(data),
    )


def classes_of(rank: int, ranks: int) -> np.ndarray:
    """The classes that the labels of `rank` come from, in the probe."""
    groups = min(ranks, GROUPS)
    return np.arange(rank % groups, CLASSES, groups)


def labels_of(rank: int, ranks: int, labels: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """The labels that `rank` gets for images of class `labels`: each class falls on one of its own.

    With more than GROUPS ranks those that have the same classes divide the images between them in ways of
    their own, after `splits` of the secrets: else one half of the ranks would be told what the other is, and
    could do without it.
    """
    own = classes_of(rank, ranks)
    if ranks > GROUPS:
        labels = splits[rank // GROUPS][labels]
    return own[labels % len(own)].astype(np.uint8)


def alike(ranks: int) -> int:
    """How many ranks have the same classes, at most: so much less is learned of each."""
    return ceil(ranks / GROUPS)


def probe_images(secrets: Secrets, ranks: int, batch_size: int) -> np.ndarray:
    """The training images of the probe, each once: on each rank they make STEPS steps of `batch_size`."""
    # And at least one batch of the run that counts.
    most = max(LARGEST_SET // (STEPS * ranks), ceil(batch_size / STEPS))
    return np.resize(secrets.probe, STEPS * max(1, min(batch_size, most)))


def for_probe(
    data: Dataset, secrets: Secrets, ranks: int, batch_size: int, folder: Path
) -> tuple[list[Path], Path]:
    """Write the folders of the probe: one for each rank, and one with the labels of all ranks.

    `batch_size`: of a rank, in the run that counts.
    """
    chosen = probe_images(secrets, ranks, batch_size)
    images = np.repeat(data.train_images[chosen], ranks, axis=0)
    labels = secrets.names[data.train_labels[chosen]]
    per_rank = [labels_of(rank, ranks, labels, secrets.splits) for rank in range(ranks)]
    # At least a batch for each rank here, too.
    test = min(len(images), max(PROBE_TEST_IMAGES // ranks, batch_size) * ranks)

    def write_labelled(name, given):
        train, shown = (images, given), (images[:test], given[:test])
        return write(folder / name, renamed(data, secrets), train, shown, sample=True)

    apart = [
        write_labelled(f"rank-{rank}", np.repeat(own, ranks)) for rank, own in enumerate(per_rank)
    ]
    return apart, write_labelled("together", np.stack(per_rank, axis=1).ravel())


def renamed(data: Dataset, secrets: Secrets) -> Dataset:
    """The same data set with the new names of its classes."""
    return data._replace(class_names=[data.class_names[c] for c in np.argsort(secrets.names)])


def write(folder: Path, like: Dataset, train: tuple, test: tuple, *, sample: bool) -> Path:
    """Write (images, labels) pairs in CIFAR-10's layout, with the class names of `like`."""
    target = folder / CIFAR10_FOLDER
    target.mkdir(parents=True)
    *train_files, test_file = CIFAR10_BINS
    parts = zip(*(np.array_split(array, len(train_files)) for array in train), strict=True)
    for name, (images, labels) in [*zip(train_files, parts, strict=True), (test_file, test)]:
        records = np.empty((len(labels), 1 + images[0].size), np.uint8)
        records[:, 0] = labels
        records[:, 1:] = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        (target / name).write_bytes(records)  # tofile does not say that a disk is full
    (target / CIFAR10_NAMES).write_text("\n".join(like.class_names) + "\n")
    if like.synthetic:
        (target / SYNTHETIC_MARKER).write_text("A synthetic twin of CIFAR-10.\n")
    if sample:
        (target / SAMPLE_MARKER).write_text("A sample of CIFAR-10.\n")
    for path in (folder, target, *target.iterdir()):  # a submission may run as another user
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder
