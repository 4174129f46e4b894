"""Folders that a hostile process wrote: how large they are, and how they go away."""

import contextlib
import os
import stat
import subprocess
from pathlib import Path

MAX_ENTRIES = 20_000  # files and folders; who writes more is not recording a training run
TOO_MUCH = 1 << 62
REMOVE_SECONDS = 120.0


def bytes_in(folder: Path) -> int:
    """Disk use of a folder that a hostile process writes to; links are not followed."""
    total, entries, folders = 0, 0, [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    entries += 1
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # it has removed or renamed it since
                        continue
                    total += 512 * status.st_blocks
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(entry.path)
                    if entries > MAX_ENTRIES:
                        return TOO_MUCH
        except FileNotFoundError:
            continue
        except OSError:  # a path too long, a folder that it closed to us
            return TOO_MUCH
    return total


def remove_tree(folder: Path) -> None:
    """Remove what a submission wrote, however deep it is and whatever rights it took away.

    What takes longer than REMOVE_SECONDS stays: it must not end the grading of others.
    """
    remove = ["rm", "-rf", "--one-file-system", "--", str(folder)]
    open_up = ["chmod", "-R", "u+rwX", "--", str(folder)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        for command in (remove, open_up, remove):
            if os.path.lexists(folder):
                subprocess.run(command, stderr=subprocess.DEVNULL, timeout=REMOVE_SECONDS)


def remove_files_of(user: int, folder: Path) -> None:
    """Remove what `user` left in a folder for everybody, as far as REMOVE_SECONDS are enough."""
    find = ["find", str(folder), "-mindepth", "1", "-maxdepth", "1", "-user", str(user)]
    remove = ["-exec", "rm", "-rf", "--one-file-system", "--", "{}", "+"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([*find, *remove], stderr=subprocess.DEVNULL, timeout=REMOVE_SECONDS)


def not_for_everyone(path: Path, reachable: bool) -> Path | None:
    """The first file or folder beneath `path` that a stranger cannot read, if there is any.

    With `reachable` also the first folder above it through which a stranger cannot pass.
    """
    for above in reversed(path.parents) if reachable else ():
        if not above.stat().st_mode & 0o001:
            return above
    for found in (path, *path.rglob("*")) if path.is_dir() else (path,):
        needed = 0o005 if found.is_dir() else 0o004
        if found.stat().st_mode & needed != needed:
            return found
    return None
