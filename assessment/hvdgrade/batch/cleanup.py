"""End the processes and remove the temporary files that the gradings of a batch left behind.

All temporary files of one grading lie in one folder, which no other grading uses. A process belongs to the
grading if this folder is part of its working folder or of one of its environment variables. No further list
of processes is kept, because a kill -9 could leave such a list incomplete.
"""

import json
import os
import socket
import stat
from pathlib import Path

from hvdgrade.batch.layout import FOLDERS
from hvdgrade.run.orphans import end_and_clear
from hvdlab.system.held_folder import HeldFolder

WORK = "hvdgrade-batch-"


def work_folder() -> HeldFolder:
    """Create and return a new folder for all temporary files of one grading.

    A submission may run as another user. The permissions let this user pass through the folder to the files
    that the grader shows the submission, but not list or read anything else.
    """
    held = HeldFolder(WORK)
    for name, mode in (("", 0o711), ("tmp", 0o711), ("grader", 0o700)):
        (held.path / name).mkdir(exist_ok=True)
        (held.path / name).chmod(mode)
    return held


def end_left_over(out: Path) -> None:
    """End the processes that a killed batch left running (see OUT/running), and remove its files."""
    folders = []
    for record in (out / "running").glob("*.json"):
        try:
            started = json.loads(record.read_text(encoding="utf-8"))
            folder = Path(started["folder"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # the batch was killed while it wrote the record, so it had started no grader yet
        if started.get("host") == socket.gethostname() and is_work_folder(folder):
            folders.append(folder)
    end_and_clear(folders)
    for pattern in ("*.json", "*.progress"):
        for file in (out / "running").glob(pattern):
            file.unlink()
    for name in FOLDERS:  # other folders in OUT do not belong to the batch
        for unfinished in (out / name).glob(".*.part"):
            unfinished.unlink()


def is_work_folder(folder: Path) -> bool:
    """Return whether `work_folder` made this folder for the current user.

    The parent folder is not checked, because the earlier batch may have used another folder for temporary
    files.
    """
    try:
        status = folder.lstat()
    except OSError:
        return False
    made = folder.is_absolute() and folder.name.startswith(WORK) and status.st_uid == os.getuid()
    return made and stat.S_ISDIR(status.st_mode)
