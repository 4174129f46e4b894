"""Read CIFAR-10 and Fashion-MNIST as NumPy arrays.

    data = load_cifar10()   # $HVDLAB_DATA, then ~/.cache/hvdlab
    batches = Batches(data.train_images, data.train_labels, 128, rank=rank, size=size, augment=True)
    for images, labels in batches.epoch(0):
        ...

Only the official binary formats are read (CIFAR-10 "binary version", IDX), never a pickle. This module
downloads nothing. download.py does that, synthetic.py makes a synthetic data set for a machine without a
network, and batches.py shards the examples across the ranks.

Reference: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html; H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, 2017,
https://arxiv.org/abs/1708.07747.
"""

import gzip
import os
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from hvdlab import HvdlabError
from hvdlab.system.command_name import hvdlab

CIFAR10_FOLDER = "cifar-10-batches-bin"
CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR10_BINS = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR10_NAMES = "batches.meta.txt"
RECORDS, RECORD = 10_000, 1 + 3 * 32 * 32  # in each .bin file: a label, then 3072 pixels

FASHION_FOLDER = "fashion-mnist"
FASHION_SHAPES = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

SYNTHETIC_MARKER = "SYNTHETIC.txt"
SAMPLE_MARKER = "SAMPLE.txt"  # next to CIFAR-10's files: each of them holds fewer records
SYNTHETIC_CLASSES = tuple(
    f"{scale} {pattern}"
    for pattern in ("horizontal stripes", "vertical stripes", "checkerboard", "rings", "lattice")
    for scale in ("coarse", "fine")
)


class DataError(HvdlabError):
    """Data is missing, broken or not accessible. The message is one sentence that says what to do."""

    broken: Path | None = None  # the folder or archive that was found but cannot be read

    def _render_traceback_(self) -> list[str]:  # what IPython shows instead of a traceback
        return [str(self)]


class Dataset(NamedTuple):
    """A data set. Images are uint8 of shape (n, height, width, channels), labels uint8 of shape (n,)."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    folder: Path  # the folder or archive that was read
    synthetic: bool


def cache_folder() -> Path:
    """Return the folder where data sets are kept by default: ~/.cache/hvdlab."""
    return Path.home() / ".cache" / "hvdlab"


def load_cifar10(folder: str | os.PathLike | None = None) -> Dataset:
    """Read CIFAR-10: 50,000 training and 10,000 test images of 32x32x3.

    A folder with a file SAMPLE.txt holds a sample: the same files with fewer records each.

    Args:
        folder: contains cifar-10-batches-bin/ or cifar-10-binary.tar.gz, or is one of these two. Default:
            $HVDLAB_DATA, then ~/.cache/hvdlab.

    Raises:
        DataError: the data set is missing or cannot be read.
    """
    names = (*CIFAR10_BINS, CIFAR10_NAMES)
    found = _find("cifar10", folder, CIFAR10_FOLDER, names, CIFAR10_ARCHIVE)
    files = _folder_files(found) if found.is_dir() else _archive_files(found)

    ends = np.cumsum([len(files[name]) // RECORD for name in CIFAR10_BINS])
    images = np.empty((ends[-1], 32, 32, 3), np.uint8)
    labels = np.empty(len(images), np.uint8)
    for i, name in enumerate(CIFAR10_BINS):
        records = files[name].reshape(-1, RECORD)
        part = slice(ends[i] - len(records), ends[i])
        labels[part] = records[:, 0]
        with _reading("cifar10", found, name, "labels 0..9"):
            _check_labels(labels[part])
        planes = records[:, 1:].reshape(-1, 3, 32, 32)
        for channel in range(3):  # three long strided copies are 3x faster than one transpose
            images[part, :, :, channel] = planes[:, channel]

    with _reading("cifar10", found, CIFAR10_NAMES, "ten class names, one a line"):
        class_names = tuple(files[CIFAR10_NAMES].tobytes().decode("ascii").split("\n"))
        class_names = tuple(name.strip() for name in class_names if name.strip())
        if len(class_names) != 10:
            raise ValueError(f"{len(class_names)} names")
    train = ends[-2]
    arrays = images[:train], labels[:train], images[train:], labels[train:]
    return Dataset(*arrays, class_names, found, (found / SYNTHETIC_MARKER).is_file())


def load_fashion_mnist(folder: str | os.PathLike | None = None) -> Dataset:
    """Read Fashion-MNIST: 60,000 training and 10,000 test images of 28x28x1.

    Files that are not compressed stay on disk and are mapped read-only.

    Args:
        folder: contains the four IDX files, plain or .gz, or a folder fashion-mnist with them. Default:
            $HVDLAB_DATA, then ~/.cache/hvdlab, then Debian's /usr/share/datasets/fashion-mnist.

    Raises:
        DataError: the data set is missing or cannot be read.
    """
    names = [name + suffix for name in FASHION_SHAPES for suffix in ("", ".gz")]
    found = _find("fashion_mnist", folder, FASHION_FOLDER, names)
    arrays = [_read_idx(found, name, shape) for name, shape in FASHION_SHAPES.items()]
    arrays = [array[..., None] if array.ndim == 3 else array for array in arrays]
    synthetic = (found / SYNTHETIC_MARKER).is_file()
    return Dataset(*arrays, SYNTHETIC_CLASSES if synthetic else FASHION_CLASSES, found, synthetic)


def _find(
    name: str,
    folder: str | os.PathLike | None,
    subfolder: str,
    file_names: Iterable[str],
    archive: str | None = None,
) -> Path:
    """Return the first folder, or archive, in the search order that holds any of the files."""
    if folder is not None:
        places = [Path(folder).expanduser()]
    else:
        places = [cache_folder()]
        if name == "fashion_mnist":
            places.append(Path("/usr/share/datasets/fashion-mnist"))
        if named := os.environ.get("HVDLAB_DATA"):
            named = Path(named).expanduser()
            # If the named place does not exist, it is a mistake. Another place would hide it.
            places = [named, *places] if named.exists() else [named]

    looked_at = []
    for place in places:
        for candidate in (place / subfolder, place):
            try:
                if not set(os.listdir(candidate)).isdisjoint(file_names):
                    return candidate
                state = "nothing of it there"
            except OSError as error:
                state = error.strerror.lower()
                if isinstance(error, PermissionError):
                    break  # otherwise the state of a later candidate would hide the reason
        if archive and (place.is_file() or os.path.lexists(place / archive)):
            return place if place.is_file() else place / archive
        looked_at.append(f"{candidate} ({state})")
    raise DataError(
        f"No {name} data in {', '.join(looked_at)}: run `{hvdlab()} data {name}` to download it or "
        f"`{hvdlab()} data {name} --synthetic` to make a synthetic data set."
    )


@contextmanager
def _reading(name: str, found: Path, file_name: str, expected: str) -> Iterator[None]:
    """Turn every error of reading a file into a DataError with one sentence about that file."""
    try:
        yield
    except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError) as error:
        reason = getattr(error, "strerror", None) or error  # "Permission denied", or our own text
        data_error = DataError(
            f"{found / file_name}: expected {expected}, found {reason}; repair it, or move {found} "
            f"away and run `{hvdlab()} data {name}` for a fresh copy."
        )
        data_error.broken = found
        raise data_error from error


def _check_labels(labels: np.ndarray) -> None:
    wrong = np.flatnonzero(labels > 9)
    if len(wrong):
        raise ValueError(f"label {labels[wrong[0]]} in record {wrong[0]}")


def _map(path: Path, size: int) -> np.ndarray:
    """Map a file of exactly `size` bytes read-only, so that ranks on one machine share its pages."""
    with path.open("rb") as file:
        actual = os.fstat(file.fileno()).st_size
        if actual != size:
            raise ValueError(f"{actual:,} bytes")
        return np.memmap(file, np.uint8, "r").view(np.ndarray)


def _folder_files(folder: Path) -> dict[str, np.ndarray]:
    sample = (folder / SAMPLE_MARKER).is_file()
    files = {}
    for name in CIFAR10_BINS:
        size = RECORDS * RECORD
        if sample and (folder / name).is_file():
            size = max(1, (folder / name).stat().st_size // RECORD) * RECORD
        with _reading("cifar10", folder, name, f"{size:,} bytes"):
            files[name] = _map(folder / name, size)
    with _reading("cifar10", folder, CIFAR10_NAMES, "ten class names, one a line"):
        with (folder / CIFAR10_NAMES).open("rb") as file:
            files[CIFAR10_NAMES] = np.frombuffer(file.read(4096), np.uint8)
    return files


def _archive_files(archive: Path) -> dict[str, np.ndarray]:
    """Read the seven files directly from the archive. No file of the archive is written to the disk."""
    sizes = {name: RECORDS * RECORD for name in CIFAR10_BINS} | {CIFAR10_NAMES: None}
    files = {}
    with (
        _reading(
            "cifar10", archive, "", f"a gzipped tar with {len(sizes)} files in {CIFAR10_FOLDER}"
        ),
        gzip.open(archive) as unzipped,
        tarfile.open(fileobj=unzipped, mode="r|") as tar,
    ):
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"the member {member.name!r}, which points outside the archive")
            if path.parent != PurePosixPath(CIFAR10_FOLDER) or path.name not in sizes:
                continue
            size = sizes[path.name]
            if not member.isfile() or (member.size != size if size else member.size > 4096):
                wanted = f"a file of {size:,} bytes" if size else "a file of at most 4096 bytes"
                kind = "" if member.isfile() else ", not a regular file"
                raise ValueError(f"{member.name} of {member.size:,} bytes{kind}, not {wanted}")
            files[path.name] = np.frombuffer(tar.extractfile(member).read(), np.uint8)
        while unzipped.read(1 << 20):
            pass  # to the end, where gzip compares its checksum
        missing = sorted(sizes.keys() - files.keys())
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
    return files


def _read_idx(folder: Path, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array of an IDX file: 0, 0, type 8 (unsigned byte), ndim, sizes, then the data."""
    path = folder / name
    if not path.exists():
        path = folder / f"{name}.gz"
    header = struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape)
    size = len(header) + prod(shape)
    expected = f"{size:,} bytes with the IDX header {header.hex(' ', 4)} and labels 0..9"
    with _reading("fashion_mnist", folder, path.name, expected):
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                raw = np.frombuffer(file.read(size + 1), np.uint8)
            if len(raw) != size:
                raise ValueError(f"{len(raw):,} bytes{' or more' if len(raw) > size else ''}")
        else:
            raw = _map(path, size)
        if raw[: len(header)].tobytes() != header:
            raise ValueError(f"the header {raw[: len(header)].tobytes().hex(' ', 4)}")
        array = raw[len(header) :].reshape(shape)
        if len(shape) == 1:
            _check_labels(array)
    return array
