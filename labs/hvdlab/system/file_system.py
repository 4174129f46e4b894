"""Locks and complete files, also on the shared file system of a cluster, which may lack locks or links.

Standard library only.
"""

from __future__ import annotations  # the doctor reads this with an old Python, too

import fcntl
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Hold a lock that only one process at a time can hold, while the block runs.

    The kernel releases the lock when the process ends, even by kill -9. On a file system without locks, a
    file in the folder for temporary files is locked instead. It excludes only the processes of this machine,
    and a line on stderr says so.

    Args:
        path: the file to lock. It is made if it does not exist.
        busy: is called if another process holds the lock, before this one waits for it. It may raise an error
            instead.

    Raises:
        OSError: the file cannot be made, or there are no locks at all.
    """
    with path.open("a", encoding="utf-8") as file:
        try:
            _take(file.fileno(), busy)
        except OSError:
            with _lock_of_this_machine(path).open("a", encoding="utf-8") as local:
                _take(local.fileno(), busy)
                print(
                    f"The file system of {path.parent} has no locks: do not do this on two machines at the "
                    "same time.",
                    file=sys.stderr,
                    flush=True,
                )
                yield
                return
        yield


def _take(file: int, busy: Callable[[], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        busy()
        fcntl.flock(file, fcntl.LOCK_EX)


def _lock_of_this_machine(path: Path) -> Path:
    """Return a file in the folder for temporary files that stands for a file elsewhere."""
    name = hashlib.sha256(os.path.realpath(str(path)).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir(), f"hvdlab-{os.geteuid()}-{name}.lock")


def lacks(folder: Path) -> list:
    """Return what the file system of a folder does not have: "locks", "symbolic links", "permissions"."""
    missing = []
    try:
        with tempfile.TemporaryDirectory(prefix=".hvdlab-", dir=str(folder)) as trial:
            file = Path(trial, "file")
            with file.open("w", encoding="utf-8") as opened:
                for name, attempt in (
                    ("locks", lambda: fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)),
                    ("symbolic links", lambda: os.symlink("file", str(file.with_name("link")))),
                ):
                    try:
                        attempt()
                    except OSError:
                        missing.append(name)
            file.chmod(0o600)
            if file.stat().st_mode & 0o777 != 0o600:
                missing.append("permissions")
    except OSError:
        pass
    return missing


def write_text(path: Path, text: str) -> None:
    """Replace a file so that a reader finds the complete old text or the complete new text.

    A device or a named pipe is not replaced, but written to.

    Args:
        text: the new text, which is written as UTF-8.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    place = Path(os.path.realpath(str(path)))  # so that a link is not replaced by a file
    unfinished = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(str(unfinished), str(place))
    except OSError:
        if unfinished.exists():
            unfinished.unlink()
        raise
