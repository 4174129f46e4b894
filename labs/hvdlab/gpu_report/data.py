"""The images for all parts: CIFAR-10 if `hvdlab.data` finds it, else synthetic or random ones.

`python -m hvdlab.gpu_report.data FOLDER whole|sample` prints the folder to use as $HVDLAB_DATA.
"""

import sys
from pathlib import Path

import numpy as np

from hvdlab.data import DataError, Dataset, load_cifar10
from hvdlab.data.files import (
    CIFAR10_BINS,
    CIFAR10_FOLDER,
    CIFAR10_NAMES,
    RECORD,
    SAMPLE_MARKER,
    SYNTHETIC_MARKER,
)
from hvdlab.data.synthetic import synthetic_cifar10

DATA_SECONDS = 90.0  # limit of this process
SAMPLE_RECORDS = 80  # of each of the six files


def prepare(folder: Path, sample: bool) -> Path:
    """Return a folder with images in CIFAR-10's layout; what has to be written goes to `folder`."""
    if sample:
        _write_sample(folder / CIFAR10_FOLDER)
        return folder
    try:
        return load_cifar10().folder.resolve()
    except DataError:
        return synthetic_cifar10(folder)


def _write_sample(folder: Path) -> None:
    """A few hundred random images: enough to run every part, and nothing to learn."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in CIFAR10_BINS:
        records = rng.integers(0, 256, (SAMPLE_RECORDS, RECORD), np.uint8)
        records[:, 0] = np.arange(SAMPLE_RECORDS) % 10
        records[:, 1:1025] = 25 * records[:, :1]  # the red channel is the label
        records.tofile(folder / name)
    (folder / CIFAR10_NAMES).write_text("\n".join(f"class {i}" for i in range(10)) + "\n")
    for marker in (SAMPLE_MARKER, SYNTHETIC_MARKER):
        (folder / marker).write_text("Made by `hvdlab gpu` for a test of itself without a GPU.\n")


def load() -> tuple[Dataset, str]:
    """The data, and a phrase for the report that says which they are."""
    data = load_cifar10()
    if not data.synthetic:
        return data, "CIFAR-10"
    kind = (
        "random images"
        if (data.folder / SAMPLE_MARKER).exists()
        else "synthetic images, not CIFAR-10"
    )
    return data, kind


if __name__ == "__main__":
    print(prepare(Path(sys.argv[1]), sys.argv[2] == "sample"))
