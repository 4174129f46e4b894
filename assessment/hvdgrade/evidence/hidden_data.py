"""Write the data that a graded run sees, and keep the rest secret.

A secret random seed, drawn again for each grading, determines both:

* Half of the test images, the *hidden* ones, are given to no run. The grader computes held-out accuracy
  on them. A run finds the other half as test images (each twice, so that the files keep their size).
* The ten classes are renamed. If a script contains weights that were trained elsewhere, they predict
  the old class numbers, so their predictions are wrong.

The probe (`hvdlab.probe_mode`) needs a further data set: each rank gets the same images, with labels from a
few classes of its own. A network can recognise a class that its rank never saw only if it received
information from another rank. Each image occurs once per rank, so that a data set with the labels of
all ranks has the same size: that of the training set. One class, also secret, is the label of all test
images and of no training image. A network can learn it only from the test images.
"""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from hvdlab.data import Dataset
from hvdlab.data.files import (
    CIFAR10_BINS,
    CIFAR10_FOLDER,
    CIFAR10_NAMES,
    SAMPLE_MARKER,
    SYNTHETIC_MARKER,
)

CLASSES = 10
PROBE_TEST_IMAGES = 500  # with short epochs
LARGEST_SET = 8192  # images of the probe with short epochs, 25 MB per rank
MOST_BYTES = 4 << 30  # of all folders of a probe; more than 26 ranks get fewer images
GROUPS = 4  # with more ranks than this some share their classes: each has at least two
MOST_ALIKE = 200  # more than any profile has ranks for


@dataclass(frozen=True)
class HiddenData:
    """The facts that a run must not know.

    `names[c]` is the new number of class c, `hidden` the indices of hidden test images. `splits` has
    shape (., CLASSES): for every GROUPS ranks one order of the classes, see `labels_of`. `test_class` is
    the class of all test images in the probe.
    """

    names: np.ndarray
    hidden: np.ndarray
    probe: np.ndarray  # training images of the probe
    splits: np.ndarray
    test_class: int

    @classmethod
    def draw(cls, seed: int, train: int = 50_000, test: int = 10_000) -> "HiddenData":
        """Return the secrets for `seed`, for given numbers of training and test images."""
        rng = np.random.default_rng([seed, 1])
        names = rng.permutation(CLASSES).astype(np.uint8)
        hidden = np.sort(rng.permutation(test)[: test // 2])
        probe = rng.permutation(train)
        splits = rng.permuted(np.tile(np.arange(CLASSES), (MOST_ALIKE, 1)), axis=1)
        return cls(names, hidden, probe, splits, int(rng.integers(CLASSES)))

    def shown(self, data: Dataset) -> np.ndarray:
        """Return the indices of the test images that are not hidden."""
        return np.setdiff1d(np.arange(len(data.test_labels)), self.hidden)

    def classes_of(self, rank: int, ranks: int) -> np.ndarray:
        """Return the classes from which the labels of `rank` come in the probe."""
        trained = np.delete(np.arange(CLASSES), self.test_class)
        groups = min(ranks, GROUPS)
        return trained[rank % groups :: groups]

    def labels_of(self, rank: int, ranks: int, labels: np.ndarray) -> np.ndarray:
        """Return the labels of `rank` for images of class `labels`: each class maps to one of the rank's own.

        With more than GROUPS ranks some ranks have the same classes. Each of them then uses another mapping,
        from `splits`. Otherwise one half of the ranks would get the same labels as the other half, and could
        train without it.
        """
        own = self.classes_of(rank, ranks)
        if ranks > GROUPS:
            labels = self.splits[rank // GROUPS][labels]
        return own[labels % len(own)].astype(np.uint8)


def is_sample(data: Dataset) -> bool:
    return len(data.train_labels) + len(data.test_labels) != 60_000


def for_run(data: Dataset, secrets: HiddenData, folder: Path) -> Path:
    """Write the data of the graded run to `folder`/cifar-10-batches-bin, and return `folder`."""
    shown = np.resize(secrets.shown(data), len(data.test_labels))
    return write(
        folder,
        renamed(data, secrets),
        (data.train_images, secrets.names[data.train_labels]),
        (data.test_images[shown], secrets.names[data.test_labels[shown]]),
        sample=is_sample(data),
    )


def probe_images(secrets: HiddenData, ranks: int, batch_size: int, steps: int) -> np.ndarray:
    """Return the indices of the probe's distinct images: see `for_probe`."""
    if steps:
        # There must be at least one batch of the graded run.
        most = max(LARGEST_SET // (steps * ranks), ceil(batch_size / steps))
        return np.resize(secrets.probe, steps * max(1, min(batch_size, most)))
    return secrets.probe[: ceil(len(secrets.probe) / ranks)]


def for_probe(
    data: Dataset,
    secrets: HiddenData,
    ranks: int,
    batch_size: int,
    folder: Path,
    steps: int = 0,
) -> tuple[list[Path], Path]:
    """Write the folders of the probe: one per rank, and one with the labels of all ranks.

    `batch_size` is the batch size per rank in the graded run. The data sets have the size of the graded
    run, or with `steps` that of so many steps.
    """
    chosen = probe_images(secrets, ranks, batch_size, steps)
    size = len(chosen) * ranks
    if not steps:
        size = min(
            len(data.train_labels), MOST_BYTES // ((ranks + 1) * (1 + data.train_images[0].size))
        )
    images = np.repeat(data.train_images[chosen], ranks, axis=0)[:size]
    labels = secrets.names[data.train_labels[chosen]]
    per_rank = [secrets.labels_of(rank, ranks, labels) for rank in range(ranks)]
    # The test images, too, must give at least one batch per rank.
    few = min(len(images), max(PROBE_TEST_IMAGES // ranks, batch_size) * ranks)
    test = few if steps else len(data.test_labels)
    test_images = data.test_images[np.resize(secrets.shown(data), test)]
    shown = test_images, np.full(test, secrets.test_class, np.uint8)

    def write_labelled(name: str, given: np.ndarray) -> Path:
        like, train = renamed(data, secrets), (images, given[:size])
        return write(folder / name, like, train, shown, sample=size + test != 60_000)

    apart = [
        write_labelled(f"rank-{rank}", np.repeat(own, ranks)) for rank, own in enumerate(per_rank)
    ]
    return apart, write_labelled("together", np.stack(per_rank, axis=1).ravel())


def renamed(data: Dataset, secrets: HiddenData) -> Dataset:
    """Return the same data set with the renamed classes."""
    return data._replace(class_names=[data.class_names[c] for c in np.argsort(secrets.names)])


def write(folder: Path, like: Dataset, train: tuple, test: tuple, *, sample: bool) -> Path:
    """Write (images, labels) pairs in CIFAR-10's layout, with the class names of `like`."""
    target = folder / CIFAR10_FOLDER
    if target.exists():  # of an earlier probe of the same grading
        return folder
    target.mkdir(parents=True)
    *train_files, test_file = CIFAR10_BINS
    parts = zip(*(np.array_split(array, len(train_files)) for array in train), strict=True)
    for name, (images, labels) in [*zip(train_files, parts, strict=True), (test_file, test)]:
        records = np.empty((len(labels), 1 + images[0].size), np.uint8)
        records[:, 0] = labels
        records[:, 1:] = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        (target / name).write_bytes(records)  # tofile does not report a full disk
    (target / CIFAR10_NAMES).write_text("\n".join(like.class_names) + "\n")
    if like.synthetic:
        (target / SYNTHETIC_MARKER).write_text("A synthetic data set in the format of CIFAR-10.\n")
    if sample:
        (target / SAMPLE_MARKER).write_text("A sample of CIFAR-10.\n")
    for path in (folder, target, *target.iterdir()):  # a submission may run as another user
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder
