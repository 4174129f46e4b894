"""Measure and remove folders to which a hostile process may have written."""

import contextlib
import os
import stat
import subprocess
from pathlib import Path

MAX_ENTRIES = 20_000  # files and folders; no training run records more than that
TOO_MUCH = 1 << 62
REMOVE_SECONDS = 120.0
# Every user may write there, and what a submission leaves there the next one could read.
SHARED = tuple(map(Path, ("/dev/shm", "/tmp", "/var/tmp")))


def bytes_in(folder: Path) -> int:
    """Return the disk usage in bytes of a folder that a hostile process writes to, without following links.

    If the folder cannot be measured or has more than MAX_ENTRIES entries, the result is TOO_MUCH.
    """
    total, entries, folders = 0, 0, [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    entries += 1
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # the process has removed or renamed it since
                        continue
                    total += 512 * status.st_blocks
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(entry.path)
                    if entries > MAX_ENTRIES:
                        return TOO_MUCH
        except FileNotFoundError:
            continue
        except OSError:  # a path that is too long, or a folder without read permission
            return TOO_MUCH
    return total


def remove_tree(folder: Path) -> None:
    """Remove a folder that a submission wrote, however deep it is and whatever permissions were removed.

    Each command ends after REMOVE_SECONDS, and what is left then stays, because one submission must not stop
    the grading of others.
    """
    remove = ["rm", "-rf", "--one-file-system", "--", str(folder)]
    open_up = ["chmod", "-R", "u+rwX", "--", str(folder)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        for command in (remove, open_up, remove):
            if os.path.lexists(folder):
                subprocess.run(command, stderr=subprocess.DEVNULL, timeout=REMOVE_SECONDS)


def remove_files_of(user: int, *folders: Path) -> None:
    """Remove the files that `user` left in folders shared by all users; give up after REMOVE_SECONDS each."""
    remove = ["-exec", "rm", "-rf", "--one-file-system", "--", "{}", "+"]
    for folder in folders:
        find = ["find", str(folder), "-mindepth", "1", "-maxdepth", "1", "-user", str(user)]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([*find, *remove], stderr=subprocess.DEVNULL, timeout=REMOVE_SECONDS)
