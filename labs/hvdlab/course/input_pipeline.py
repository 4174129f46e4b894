"""The parts of the input pipeline of lab 10: image files, shards, and the augmentation of one image.

    paths = write_images(images, labels, folder, "png")
    image, label = decode(paths[0].read_bytes()), label_of(paths[0])
    flipped, top, left = draw(np.random.default_rng(1), 1)
    image = augment_image(image, flipped[0], top[0], left[0])

Standard library, NumPy and Pillow only, so that the framework stays visible in the lab.
"""

import io
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

PAD = 4  # pixels that are added on each side before a window of the old size is cut out


def write_images(
    images: np.ndarray, labels: np.ndarray, folder: Path, suffix: str = "png"
) -> list[Path]:
    """Write one file per image, NUMBER_LABEL.SUFFIX, and return the paths in the order of the images.

    Args:
        images: uint8, shape (n, height, width, 3).
        labels: integers, shape (n,).
        folder: is deleted first if it exists.
        suffix: "png" (lossless) or "jpg". Default "png".
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        paths.append(folder / f"{number:06d}_{label}.{suffix}")
        Image.fromarray(image).save(paths[-1])
    return paths


def decode(encoded: bytes) -> np.ndarray:
    """Return the pixels of an image file, uint8 of shape (height, width, 3).

    Args:
        encoded: the bytes of the file.
    """
    with Image.open(io.BytesIO(encoded)) as image:
        return np.asarray(image.convert("RGB"))


def label_of(path: Path | str) -> int:
    """Return the label that the name of an image file contains, for example 3 for 000012_3.png."""
    return int(Path(path).stem.rpartition("_")[2])


def number_of(path: Path | str) -> int:
    """Return the number that the name of an image file contains, for example 12 for 000012_3.png."""
    return int(Path(path).stem.partition("_")[0])


def write_shards(paths: list[Path], folder: Path, count: int) -> list[Path]:
    """Pack image files into `count` tar files of nearly equal length, and return the paths of these shards.

    Args:
        folder: is deleted first if it exists.
        count: number of shards.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shards = []
    for number, part in enumerate(np.array_split(np.arange(len(paths)), count)):
        shards.append(folder / f"shard_{number:03d}.tar")
        with tarfile.open(shards[-1], "w") as tar:
            for index in part:
                tar.add(paths[index], arcname=paths[index].name)
    return shards


def read_shard(shard: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of every file in a shard, in one pass from its beginning to its end."""
    with tarfile.open(shard, "r|") as tar:
        for member in tar:
            yield member.name, tar.extractfile(member).read()


def draw(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the augmentation of `count` images: which ones are mirrored, and where each window begins.

    Args:
        count: number of images.

    Returns:
        flipped, bool of shape (count,); top and left, integers from 0 to 2 PAD of shape (count,).
    """
    flipped = random.random(count) < 0.5
    top, left = random.integers(0, 2 * PAD + 1, (2, count))
    return flipped, top, left


def augment_image(image: np.ndarray, flipped: bool, top: int, left: int) -> np.ndarray:
    """Pad an image by reflection, cut a window of the old size out of it, and mirror the window.

    Args:
        image: uint8, shape (height, width, 3).
        flipped: whether the window is mirrored left to right.
        top: first row of the window in the padded image, 0 to 2 PAD.
        left: first column of the window in the padded image, 0 to 2 PAD.
    """
    height, width = image.shape[:2]
    padded = np.pad(image, ((PAD, PAD), (PAD, PAD), (0, 0)), mode="reflect")
    window = padded[top : top + height, left : left + width]
    return np.ascontiguousarray(window[:, ::-1] if flipped else window)


def file_formats(
    images: np.ndarray, labels: np.ndarray, folder: Path, count: int
) -> list[dict[str, object]]:
    """Store the first `count` images in four formats, and measure reading and decoding of all of them.

    The single files and the array are read in a random order, and the tar files from beginning to end.

    Args:
        images: uint8, shape (n, height, width, 3).
        labels: integers, shape (n,).
        count: number of images.

    Returns:
        Rows with "format", "files", "bytes per image" and "us per image".
    """
    images, labels = images[:count], labels[:count]
    png = write_images(images, labels, folder / "png")
    jpg = write_images(images, labels, folder / "jpg", "jpg")
    tar = write_shards(png, folder / "tar", 4)
    npy = folder / "images.npy"
    np.save(npy, images)
    order = np.random.default_rng(0).permutation(count)
    mapped = np.load(npy, mmap_mode="r")
    readers = {
        "png": (png, lambda: [decode(png[number].read_bytes()) for number in order]),
        "jpg": (jpg, lambda: [decode(jpg[number].read_bytes()) for number in order]),
        "tar": (tar, lambda: [decode(file) for shard in tar for _, file in read_shard(shard)]),
        "npy": ([npy], lambda: [mapped[part] for part in np.array_split(order, -(-count // 128))]),
    }
    rows = []
    for name, (files, read) in readers.items():
        _, microseconds = timed(lambda _, read=read: read(), [None])
        size = sum(path.stat().st_size for path in files)
        rows.append(
            {
                "format": name,
                "files": len(files),
                "bytes per image": size / count,
                "us per image": microseconds / count,
            }
        )
    return rows


def timed(function: Callable, items: Iterable) -> tuple[list, float]:
    """Return the results of a function for all items, and the mean microseconds of a call."""
    items = list(items)
    began = time.perf_counter()
    results = [function(item) for item in items]
    return results, 1e6 * (time.perf_counter() - began) / len(items)


def stage_times(stages: dict[str, Callable], items: Iterable) -> tuple[list, dict[str, float]]:
    """Pass each item through all stages, and return the results and the mean microseconds of each stage.

    The stages take turns, as in a real pipeline. A stage that runs for all items in a row would be faster,
    because its code and data would stay in the caches of the processor.
    """
    items = list(items)
    seconds = dict.fromkeys(stages, 0.0)
    results = []
    for value in items:
        for name, stage in stages.items():
            began = time.perf_counter()
            value = stage(value)
            seconds[name] += time.perf_counter() - began
        results.append(value)
    return results, {name: 1e6 * total / len(items) for name, total in seconds.items()}
