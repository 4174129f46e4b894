"""Make synthetic data sets in place of CIFAR-10 and Fashion-MNIST, for a machine without a network.

They have the same files, shapes and types as the real data sets, and ten balanced classes: five patterns,
coarse and fine (SYNTHETIC_CLASSES). Position and colours are random, so that no single pixel depends on the
class. So a linear model stays near chance, but a small convolutional network learns the classes. A mirrored
image belongs to the same class, so the usual augmentation is right for this data too.

All arithmetic uses integers, so every machine writes the same bytes. Results on this data show that training
works. They do not show how well a model recognises real images.
"""

import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hvdlab.data.download import one_process
from hvdlab.data.files import (
    CIFAR10_ARCHIVE,
    CIFAR10_BINS,
    CIFAR10_FOLDER,
    CIFAR10_NAMES,
    FASHION_FOLDER,
    FASHION_SHAPES,
    RECORD,
    RECORDS,
    SYNTHETIC_CLASSES,
    SYNTHETIC_MARKER,
    DataError,
)

CHUNK = 500  # images at a time, so that the arrays stay in the processor's cache
COLOURS, NOISE = 160, 96  # a pixel is a colour in 0..159 plus noise in 0..95: it fits a byte
SMALLEST_CONTRAST = 40  # between pattern and background, in each channel
COARSE, FINE = (5, 8), (2, 4)  # half a period in pixels: at least, less than


def synthetic_cifar10(folder: str | os.PathLike) -> Path:
    """Write the synthetic CIFAR-10 to `folder`/cifar-10-batches-bin and return `folder`.

    It needs about 180 MB. If it is complete already, nothing is written.

    Args:
        folder: is made if it does not exist.

    Raises:
        DataError: the folder holds the real data set, which is never changed, or cannot be written to.
    """
    sizes = dict.fromkeys(CIFAR10_BINS, RECORDS * RECORD)
    return _write(Path(folder).expanduser(), "cifar10", CIFAR10_FOLDER, sizes, _write_cifar10)


def synthetic_fashion_mnist(folder: str | os.PathLike) -> Path:
    """Write the synthetic Fashion-MNIST to `folder`/fashion-mnist, uncompressed, and return `folder`.

    It needs about 55 MB. If it is complete already, nothing is written.

    Args:
        folder: is made if it does not exist.

    Raises:
        DataError: the folder holds the real data set, which is never changed, or cannot be written to.
    """
    sizes = {
        name: 4 + 4 * len(shape) + int(np.prod(shape)) for name, shape in FASHION_SHAPES.items()
    }
    return _write(
        Path(folder).expanduser(), "fashion_mnist", FASHION_FOLDER, sizes, _write_fashion_mnist
    )


def _write(
    folder: Path,
    name: str,
    subfolder: str,
    sizes: dict[str, int],
    write_files: Callable[[Path], None],
) -> Path:
    target = folder / subfolder
    try:
        if _complete(target, sizes):
            return folder
        archive = name == "cifar10" and (folder / CIFAR10_ARCHIVE).exists()
        files = target.exists() and any(target.iterdir())
        if archive or (files and not (target / SYNTHETIC_MARKER).exists()):
            raise DataError(
                f"{folder} holds {name} data that is not synthetic, and a synthetic data set would hide it: "
                "give another folder."
            )
        folder.mkdir(parents=True, exist_ok=True)
        with (
            one_process(folder, name),
            tempfile.TemporaryDirectory(prefix=".synthetic-", dir=folder) as scratch,
        ):
            if _complete(target, sizes):
                return folder  # by the process that had the lock before us
            made = Path(scratch) / subfolder
            made.mkdir()
            write_files(made)
            (made / SYNTHETIC_MARKER).write_text(
                f"This is not {name} but a synthetic data set: ten classes of stripes, checkerboards, "
                "rings and lattices, made by hvdlab.data.synthetic.\n",
                encoding="utf-8",
            )
            if target.exists():
                shutil.rmtree(target)  # an incomplete synthetic data set, or an empty folder
            made.rename(target)
    except OSError as error:
        raise DataError(
            f"Cannot write the synthetic {name} to {target}: {error.strerror or error}; "
            "give a folder that you may write to, with 200 MB free."
        ) from error
    return folder


def _complete(target: Path, sizes: dict[str, int]) -> bool:
    names = [*sizes, SYNTHETIC_MARKER]
    return all((target / name).is_file() for name in names) and all(
        (target / name).stat().st_size == size for name, size in sizes.items()
    )


def _write_cifar10(folder: Path) -> None:
    rng = np.random.default_rng([10, 1])
    train = _labels(50_000, rng)
    labels = np.concatenate([train, _labels(10_000, rng)])
    for i, name in enumerate(CIFAR10_BINS):
        records = np.empty((RECORDS, RECORD), np.uint8)
        records[:, 0] = labels[i * RECORDS : (i + 1) * RECORDS]
        records[:, 1:] = _images(records[:, 0], 3, 32, rng).reshape(RECORDS, -1)
        records.tofile(folder / name)
    (folder / CIFAR10_NAMES).write_text("\n".join(SYNTHETIC_CLASSES) + "\n", encoding="utf-8")


def _write_fashion_mnist(folder: Path) -> None:
    rng = np.random.default_rng([28, 1])
    for split in ("train", "t10k"):
        shape = FASHION_SHAPES[f"{split}-images-idx3-ubyte"]
        labels = _labels(shape[0], rng)
        _write_idx(folder / f"{split}-labels-idx1-ubyte", labels)
        images = _images(labels, 1, 28, rng).reshape(shape)
        _write_idx(folder / f"{split}-images-idx3-ubyte", images)


def _write_idx(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        file.write(struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape))
        file.write(array)


def _labels(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.arange(n) % 10).astype(np.uint8)


def _images(labels: np.ndarray, channels: int, side: int, rng: np.random.Generator) -> np.ndarray:
    """Return uint8 images of shape (n, channels, side, side)."""
    images = np.empty((len(labels), channels, side, side), np.uint8)
    for start in range(0, len(labels), CHUNK):
        chunk = slice(start, start + CHUNK)
        n = len(labels[chunk])
        # The difference is taken modulo COLOURS. So the contrast is strong in every channel, light on dark
        # is as frequent as dark on light, and every colour is as likely in the pattern as in the background.
        behind = rng.integers(0, COLOURS, (n, channels, 1, 1))
        contrast = rng.integers(SMALLEST_CONTRAST, COLOURS - SMALLEST_CONTRAST + 1, behind.shape)
        pattern = (behind + contrast) % COLOURS
        mask = _masks(labels[chunk], side, rng)[:, None]
        images[chunk] = np.where(mask, pattern.astype(np.uint8), behind.astype(np.uint8))
        images[chunk] += rng.integers(0, NOISE, images[chunk].shape, np.uint8)
    return images


def _masks(labels: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
    """Return which pixels of each image belong to its pattern: bool, shape (n, side, side)."""
    masks = np.empty((len(labels), side, side), bool)
    y, x = np.ogrid[:side, :side]
    for label in range(10):
        chosen = np.flatnonzero(labels == label)
        width = rng.integers(*(FINE if label % 2 else COARSE), (len(chosen), 1, 1))
        # int16 keeps the planes small. The phase is random within one period.
        phase_y, phase_x = (rng.integers(0, 2 * width).astype(np.int16) for _ in range(2))
        centre_y, centre_x = rng.integers(side // 4, side - side // 4, (2, len(chosen), 1, 1))
        width = width.astype(np.int16)
        down, across = y.astype(np.int16) + phase_y, x.astype(np.int16) + phase_x
        if label < 2:  # horizontal stripes
            number = down // width
        elif label < 4:  # vertical stripes
            number = across // width
        elif label < 6:  # checkerboard
            number = down // width + across // width
        elif label < 8:  # rings; every machine rounds the root of a whole number exactly
            radius = np.sqrt((y - centre_y) ** 2 + (x - centre_x) ** 2).astype(np.int16)
            number = (radius + phase_x) // width
        else:  # lattice: thin diagonals both ways
            period = 2 * width
            rising = (down + across) % period < period // 3
            falling = (down - across) % period < period // 3
            number = rising | falling
        masks[chosen] = number % 2 if number.dtype != bool else number
    return masks
