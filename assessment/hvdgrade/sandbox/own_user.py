"""Give a submission a user id that no other submission and no person of this host has.

Only root can do so. The kernel then keeps the submission away from private files and the processes of all
other users. The submission can read only what every user can read, which must include Python and the data.
"""

import importlib.util
import os
import socket
import sys
from pathlib import Path

from hvdgrade.sandbox.mounts import packages

# systemd, too, takes the users that it creates for one service (DynamicUser) from this range.
USERS = range(61184, 61184 + 1024)
# What a training script imports. Each of them can have been installed with other permissions.
IMPORTED = ("numpy", "mpi4py", "horovod", "torch", "tensorflow", "keras")


def free_user() -> tuple[int, socket.socket]:
    """Return a user id that no other sandbox on this machine uses now, and the socket that reserves it.

    The socket is an abstract one whose name contains the user id, because the kernel lets only one process
    bind a name and frees it when that process ends.

    Raises:
        OSError: all user ids for submissions are in use.
    """
    for number in USERS:
        slot = socket.socket(socket.AF_UNIX)
        try:
            slot.bind(f"\0hvdgrade-user-{number}")
        except OSError:
            slot.close()
            continue
        return number, slot
    raise OSError(f"all {len(USERS)} user ids for submissions are in use")


def files_of_python() -> list[str]:
    """Return files and folders that a rank needs: Python, its packages, MPI and hvdlab."""
    found = [sys.executable, os.__file__, *packages()]
    for spec in filter(None, map(importlib.util.find_spec, IMPORTED)):
        found += [spec.origin] if spec.origin else spec.submodule_search_locations or []
    return found


def why_no_python() -> str:
    """Return why other users cannot start this Python with its packages, and what to do; "" if they can."""
    for path in map(Path, dict.fromkeys(files_of_python())):
        for name in dict.fromkeys((path.resolve(), path)):  # what a link leads to, and the link
            if closed := closed_to_others(name):
                return (
                    f"other users cannot {'read' if closed == name else 'enter'} {closed}, so a user of its "
                    f"own cannot use {name}. Install Python and the course where every user can read them, "
                    "for example in /opt with `make setup PYTHON=/usr/bin/python3`, or run "
                    f"`{opened(closed, name)}`"
                )
    return ""


def why_no_data(folder: Path, user: int, reachable: bool) -> str:
    """Return why `user` cannot read the data in `folder`, and what to do; "" if it can.

    Args:
        reachable: whether the submission reaches the folder by its path on the host.
    """
    closed = closed_to_others(folder) if reachable else None
    if closed in folder.parents:
        return (
            f"other users cannot enter {closed}, where the data of a run lie. Set TMPDIR to a folder that "
            f"every user can enter, or run `{opened(closed, folder)}`"
        )
    for path in (folder, *folder.rglob("*")):
        if not readable(path, user):
            return f"{path} must be readable for every user (`{opened(path, folder)}`)"
    return ""


def lend(folder: Path, user: int, mode: int = 0o750) -> None:
    """Let nobody but root and `user` enter a folder of ours; with mode 0o710, `user` cannot list it."""
    os.chown(folder, -1, user)
    folder.chmod(mode)


def closed_to_others(path: Path) -> Path | None:
    """Return the first folder above `path` that others cannot enter, or `path` if they cannot read it."""
    for above in reversed(path.parents):
        if not above.stat().st_mode & 0o001:
            return above
    return None if not path.exists() or readable(path) else path


def readable(path: Path, user: int | None = None) -> bool:
    """Return whether every user, or only `user`, may read this file, or list and enter this folder."""
    facts, needed = path.stat(), 0o005 if path.is_dir() else 0o004
    lent = facts.st_gid == user and facts.st_mode >> 3 & needed == needed
    return lent or facts.st_mode & needed == needed


def opened(closed: Path, path: Path) -> str:
    """Return the command that opens `path` to every user, where `closed` is what keeps them away."""
    return f"chmod a+x {closed}" if closed in path.parents else f"chmod -R a+rX {path}"
