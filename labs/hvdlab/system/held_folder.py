"""Make temporary folders that the next command removes if this one is killed. Standard library only.

    with held_folder("hvdlab-gpu-") as folder:
        (folder.path / "data").mkdir()

The process holds a lock on a file in its folder. The kernel releases the lock when the process ends in any
way, even by kill -9. So a folder whose lock is free belongs to no process any more.
"""

from __future__ import annotations  # the doctor reads this package with an old Python, too

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The file that is locked. Its name contains that of this host, because a file system that several hosts share
# may have locks that only one host sees.
HELD = f"held-by-{socket.gethostname()}"


class HeldFolder:
    """A new temporary folder that this process holds. Only its user can enter it.

    Attributes:
        path: of the folder.
        locks: the file descriptor with the lock. A process that inherits it holds the folder, too. The list
            is empty on a file system without locks, where the folder stays if this process is killed.

    Args:
        parent: where it is made. Default: the folder for temporary files ($TMPDIR).

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, prefix: str, parent: str | os.PathLike | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # The file gets its name after it is locked, because a folder with a free lock may be removed at once.
        unlocked = self.path / f".{HELD}"
        self.locks = [os.open(str(unlocked), os.O_CREAT | os.O_RDWR, 0o600)]
        try:
            fcntl.flock(self.locks[0], fcntl.LOCK_EX)
            unlocked.rename(self.path / HELD)
        except OSError:
            self.release()

    def release(self) -> None:
        """Give up the lock. Call it after the folder has been removed."""
        while self.locks:
            os.close(self.locks.pop())


@contextmanager
def held_folder(prefix: str) -> Iterator[HeldFolder]:
    """Make a temporary folder that is removed at the end of the block.

    Folders with the same beginning of their name that killed commands have left are removed first.

    Yields:
        The folder.
    """
    for left in left_over(prefix):
        shutil.rmtree(str(left), ignore_errors=True)
    folder = HeldFolder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(str(folder.path), ignore_errors=True)
        folder.release()


def left_over(prefix: str, parent: str | os.PathLike | None = None) -> list:
    """Return the folders that HeldFolder made for this user and that no process holds any more.

    Args:
        parent: where they were made. Default: the folder for temporary files ($TMPDIR).
    """
    return [
        folder
        for folder in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*")
        if _is_left_over(folder)
    ]


def _is_left_over(folder: Path) -> bool:
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return False
        held = os.open(str(folder / HELD), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # it is not a folder of ours, or was made a moment ago, or was just removed
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(held)
