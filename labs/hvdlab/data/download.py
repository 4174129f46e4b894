"""Download CIFAR-10 and Fashion-MNIST once per machine. Downloads are resumed and checksums are verified.

    fetch("cifar10")            # into ~/.cache/hvdlab, where load_cifar10() looks

Sources: https://www.cs.toronto.edu/~kriz/cifar.html, https://github.com/zalandoresearch/fashion-mnist
"""

import errno
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hvdlab.data.files import (
    CIFAR10_ARCHIVE,
    CIFAR10_FOLDER,
    FASHION_FOLDER,
    SYNTHETIC_MARKER,
    DataError,
    cache_folder,
)
from hvdlab.system import file_system
from hvdlab.system.command_name import hvdlab


class Source(NamedTuple):
    """A file of a data set, and where to download it."""

    url: str
    file: str  # below the folder
    md5: str
    size: int  # bytes
    unpacked: str  # if this file exists below the folder, no download is needed


TORONTO = "https://www.cs.toronto.edu/~kriz/"
ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


def _zalando(name: str, md5: str, size: int) -> Source:
    file = f"{FASHION_FOLDER}/{name}"
    return Source(f"{ZALANDO}{name}.gz", f"{file}.gz", md5, size, file)


SOURCES = {
    "cifar10": [
        Source(
            TORONTO + CIFAR10_ARCHIVE,
            CIFAR10_ARCHIVE,
            "c32a1d4ab5d03f1284b67883e8d87530",
            170_052_171,
            f"{CIFAR10_FOLDER}/test_batch.bin",
        )
    ],
    "fashion_mnist": [
        _zalando("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        _zalando("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
        _zalando("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        _zalando("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    ],
}
CHUNK = 1 << 18  # bytes
UNWRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSPC, errno.EDQUOT}
PROGRESS_AFTER_SECONDS = 2.0  # a shorter download prints no progress line


def fetch(name: str, folder: str | os.PathLike | None = None) -> Path:
    """Download the missing files of a data set and return the folder for `load_cifar10` and the like.

    All ranks may call it at the same time. The first process takes a lock and downloads. The others wait for
    it and then find the files.

    Args:
        name: "cifar10" (170 MB) or "fashion_mnist" (31 MB).
        folder: where to write the files. Default: $HVDLAB_DATA if it is set, else ~/.cache/hvdlab.

    Returns:
        The folder.

    Raises:
        DataError: there is no network or no permission, a checksum is wrong, or the folder holds a synthetic
            data set.
        ValueError: there is no such data set.
    """
    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(SOURCES)}. Received: name={name!r}")
    folder = Path(folder or os.environ.get("HVDLAB_DATA") or cache_folder()).expanduser()
    target = (folder / SOURCES[name][0].unpacked).parent
    try:
        if (target / SYNTHETIC_MARKER).exists():
            raise DataError(
                f"{target} holds a synthetic data set in place of {name}: delete it and run this again."
            )
        if not _missing(name, folder):
            return folder  # without the lock, as a shared folder may be read-only
        folder.mkdir(parents=True, exist_ok=True)
        with one_process(folder, name):
            for source in _missing(name, folder):
                download(source.url, folder / source.file, md5=source.md5, size=source.size)
    except OSError as error:
        raise DataError(
            f"Cannot write {name} to {folder}: {error.strerror or error}; name a folder that you "
            f"may write to, for example `{hvdlab()} data {name} --dir DIR`."
        ) from error
    return folder


def _missing(name: str, folder: Path) -> list[Source]:
    # A file under its final name was checked before it got that name.
    return [
        source
        for source in SOURCES[name]
        if not (folder / source.file).exists() and not (folder / source.unpacked).exists()
    ]


@contextmanager
def one_process(folder: Path, name: str) -> Iterator[None]:
    """Make sure that only one process at a time writes a data set, while the block runs.

    Args:
        folder: where the data set is written.
        name: of the data set.
    """

    def busy() -> None:
        message = f"Another process is writing {name}: waiting for it."
        print(message, file=sys.stderr, flush=True)

    with file_system.locked(folder / f".{name}.lock", busy):
        yield


def download(
    url: str,
    destination: str | os.PathLike,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    size: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    timeout: float = 30.0,
) -> Path:
    """Download `url` to the file `destination` and return its path.

    The received bytes are kept in DESTINATION.part, and the next call continues from there. The file gets its
    name only when it is complete and its checksum is right.

    Args:
        url: of the file.
        destination: path of the file on this machine.
        sha256: hexadecimal checksum. Default: not checked.
        md5: hexadecimal checksum. Default: not checked.
        size: in bytes. Default: not checked.
        progress: called with (bytes so far, total bytes or None). Default: print a line to stderr.
        timeout: seconds without an answer of the server. Default 30.

    Raises:
        DataError: there is no network, the connection ended early (DESTINATION.part is kept), or the size or
            a checksum is wrong (DESTINATION.part is deleted).
    """
    destination = Path(destination)
    part = destination.with_name(destination.name + ".part")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part, size, progress or progress_line(destination.name), timeout)
        _verify(url, part, size, {"sha256": sha256, "md5": md5})
        part.replace(destination)
    except (OSError, http.client.HTTPException) as error:
        of_network = isinstance(error, urllib.error.URLError)
        if not of_network and getattr(error, "errno", None) in UNWRITABLE:
            raise DataError(
                f"Cannot write {part} ({error.strerror}): make room or name another folder, and run the "
                "command again (it continues where it stopped)."
            ) from error
        http_error = isinstance(error, urllib.error.HTTPError)
        reason = error if http_error else getattr(error, "reason", error)  # unwrap URLError
        reason = getattr(reason, "strerror", None) or reason
        raise DataError(
            f"Could not download {url} ({reason}): check the network and run the command again (it "
            f"continues where it stopped), copy the file to {destination} yourself, or make a "
            "synthetic data set with --synthetic."
        ) from error
    return destination


def _receive(
    url: str,
    part: Path,
    size: int | None,
    progress: Callable[[int, int | None], None],
    timeout: float,
) -> None:
    have = part.stat().st_size if part.exists() else 0
    if size is not None and have >= size:
        return  # an earlier call stopped between the last byte and the check
    headers = {"User-Agent": "hvdlab"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=timeout
        )
    except urllib.error.HTTPError as error:
        error.close()  # it is an open connection too
        if error.code != 416 or not have:
            raise
        part.unlink()  # the server has nothing after this part: start again from the first byte
        return _receive(url, part, size, progress, timeout)
    with response:
        continues = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        resumed = have > 0 and response.status == 206 and continues
        have = have if resumed else 0  # a server that ignores Range sends the whole file again
        length = response.headers.get("Content-Length")
        total = size if size is not None else (have + int(length) if length else None)
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(have, total)
                if total is not None and have > total:
                    return  # too long: _verify raises an error
    if total is not None and have < total:
        raise ConnectionError(f"the connection ended after {have:,} of {total:,} bytes")


def _verify(url: str, part: Path, size: int | None, checksums: dict[str, str | None]) -> None:
    found = {"size": f"{part.stat().st_size:,} bytes"}
    expected = {"size": f"{size:,} bytes"} if size is not None else {}
    for kind, checksum in checksums.items():
        if checksum is not None:
            with part.open("rb") as file:
                found[kind] = hashlib.file_digest(file, kind).hexdigest()
            expected[kind] = checksum.lower()
    for kind, value in expected.items():
        if found[kind] != value:
            part.unlink()
            raise DataError(
                f"{url}: expected {kind} {value}, found {found[kind]}; the file was deleted: run "
                "the command again, and if this repeats, get the file from another source."
            )


def progress_line(
    label: str, *, clock: Callable[[], float] = time.monotonic
) -> Callable[[int, int | None], None]:
    """Return a function progress(done, total) that updates one line on stderr, after two seconds.

    Args:
        label: the first word of the line.
        clock: returns the time in seconds. Default `time.monotonic`.
    """
    started = shown = clock()

    def progress(done: int, total: int | None) -> None:
        nonlocal shown
        now, finished = clock(), done == total
        if now - started < PROGRESS_AFTER_SECONDS or (now - shown < 0.5 and not finished):
            return
        shown = now
        text = f"\r{label}: {done / 1e6:.1f} MB" + (f" of {total / 1e6:.1f} MB" if total else "")
        print(text, end="\n" if finished else "", file=sys.stderr, flush=True)

    return progress
