"""End the processes and remove the temporary files that the gradings of a batch left behind.

All temporary files of one grading lie in one folder, which no other grading uses. A process belongs to the
grading if this folder is part of its working folder or of one of its environment variables. No further list
of processes is kept, because a kill -9 could leave such a list incomplete.
"""

import json
import os
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from hvdgrade.batch.layout import FOLDERS
from hvdgrade.run.orphans import GRACE_SECONDS, kill_until_gone, signal_all
from hvdgrade.sandbox.untrusted_files import remove_tree

WORK = "hvdgrade-batch-"


def work_folder() -> Path:
    """Create and return a new folder for all temporary files of one grading.

    A submission may run as another user. The permissions let this user pass through the folder to the files
    that the grader shows the submission, but not list or read anything else.
    """
    folder = Path(tempfile.mkdtemp(prefix=WORK))
    for name, mode in (("", 0o711), ("tmp", 0o711), ("grader", 0o700)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(mode)
    return folder


def end_left_over(out: Path) -> None:
    """End the processes that a killed batch left running (see OUT/running), and remove its files.

    Args:
        out: the folder of the batch.
    """
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
    for record in (out / "running").glob("*.json"):
        record.unlink()
    for name in FOLDERS:  # other folders in OUT do not belong to the batch
        for unfinished in (out / name).glob(".*.part"):
            unfinished.unlink()


def is_work_folder(folder: Path) -> bool:
    """Return whether `work_folder` made this folder for the current user.

    The parent folder is not checked, because the earlier batch may have used another folder for temporary
    files.

    Args:
        folder: the folder that a record names.
    """
    try:
        status = folder.lstat()
    except OSError:
        return False
    made = folder.is_absolute() and folder.name.startswith(WORK) and status.st_uid == os.getuid()
    return made and stat.S_ISDIR(status.st_mode)


def end_and_clear(folders: list[Path]) -> None:
    """End all processes that belong to these folders, graders first and with SIGTERM; remove the folders.

    Args:
        folders: folders that `work_folder` made.
    """
    # On SIGTERM a grader ends its submission and cleans up. A grader is recognised by its TMPDIR, the folder
    # `tmp` that the batch gave it. The processes in its sandbox have other values of TMPDIR.
    temporary = {str(folder / "tmp") for folder in folders}
    graders = [process for process, texts in processes() if texts[0] in temporary]
    signal_all(graders, signal.SIGTERM)
    psutil.wait_procs(graders, timeout=GRACE_SECONDS)
    kill_until_gone(
        lambda: [
            process
            for process, texts in processes()
            if any(str(folder) in text for folder in folders for text in texts)
        ]
    )
    for folder in folders:
        remove_tree(folder)


def processes() -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield every process that this user may inspect, with a list of strings to search for a folder.

    The list holds the TMPDIR of the process, its working folder, and the values of its environment variables.
    """
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            yield process, [variables.get("TMPDIR", ""), process.cwd(), *variables.values()]
        except (psutil.Error, OSError):
            continue
