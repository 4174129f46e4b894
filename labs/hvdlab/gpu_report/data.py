"""The images for all parts: CIFAR-10 if `hvdlab.data` finds it, else synthetic or random images.

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

DATA_SECONDS = 90.0  # time limit of this process
SAMPLE_RECORDS = 80  # images in each of the six files


def prepare(folder: Path, sample: bool) -> Path:
    """Return a folder with images in the format of CIFAR-10.

    Args:
        sample: write a few hundred random images instead of looking for CIFAR-10.
    """
    if sample:
        _write_sample(folder / CIFAR10_FOLDER)
        return folder
    try:
        return load_cifar10().folder.resolve()
    except DataError:
        return synthetic_cifar10(folder)


def _write_sample(folder: Path) -> None:
    """Write enough random images to run every part. A network can learn only the color of their label."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in CIFAR10_BINS:
        records = rng.integers(0, 256, (SAMPLE_RECORDS, RECORD), np.uint8)
        records[:, 0] = np.arange(SAMPLE_RECORDS) % 10
        records[:, 1:1025] = 25 * records[:, :1]  # the red channel is the label
        records.tofile(folder / name)
    names = "".join(f"class {i}\n" for i in range(10))
    (folder / CIFAR10_NAMES).write_text(names, encoding="utf-8")
    for marker in (SAMPLE_MARKER, SYNTHETIC_MARKER):
        text = "Made by `hvdlab gpu` for a test of itself without a GPU.\n"
        (folder / marker).write_text(text, encoding="utf-8")


def load() -> tuple[Dataset, str]:
    """Return the data, and a phrase for the report that says which data they are."""
    data = load_cifar10()
    if not data.synthetic:
        return data, "CIFAR-10"
    sample = (data.folder / SAMPLE_MARKER).exists()
    return data, "random images" if sample else "synthetic images, not CIFAR-10"


if __name__ == "__main__":
    print(prepare(Path(sys.argv[1]), sys.argv[2] == "sample"))
