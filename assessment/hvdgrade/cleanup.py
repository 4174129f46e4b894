"""Ends what gradings of a batch left behind: processes and temporary files.

All that is temporary of one grading lies in a folder of its own. A process belongs to the grading if
the folder is its working folder or occurs in its environment; there is no other record that a kill -9
could tear.
"""

import ctypes
import json
import os
import signal
import socket
import stat
import tempfile
import time
from pathlib import Path

import psutil

from hvdgrade.folders import remove_tree

GRACE_SECONDS = 15.0  # for a grader that is asked to end: it ends the submission and clears up
WORK = "hvdgrade-batch-"
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


def work_folder() -> Path:
    """A new folder for everything temporary of one grading.

    A submission may run as another user. That one may pass through it to what the grader shows it,
    and look at nothing else.
    """
    folder = Path(tempfile.mkdtemp(prefix=WORK))
    for name, mode in (("", 0o711), ("tmp", 0o711), ("grader", 0o700)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(mode)
    return folder


def end_left_over(out: Path) -> None:
    """End what a killed batch left running, as OUT/running tells, and remove its files."""
    from hvdgrade.worker import FOLDERS  # not above: it imports this module

    folders = []
    for record in (out / "running").glob("*.json"):
        try:
            left = json.loads(record.read_text())
            folder = Path(left["folder"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # killed before it was written whole: nothing had been started
        if left.get("host") == socket.gethostname() and is_work_folder(folder):
            folders.append(folder)
    end_and_clear(folders)
    for record in (out / "running").glob("*.json"):
        record.unlink()
    for name in FOLDERS:  # another folder in OUT is somebody else's
        for part in (out / name).glob(".*.part"):
            part.unlink()


def is_work_folder(folder: Path) -> bool:
    """Whether `work_folder` made it for us, in whatever place was the one for temporary files then."""
    try:
        ours = folder.lstat()
    except OSError:
        return False
    made = folder.is_absolute() and folder.name.startswith(WORK) and ours.st_uid == os.getuid()
    return made and stat.S_ISDIR(ours.st_mode)


def end_and_clear(folders: list[Path]) -> None:
    """End all processes that work in these folders, graders politely first; remove the folders."""
    # A grader that is asked to end ends its submission and clears up. It has our TMPDIR; what runs
    # in its jail has others.
    wanted = {str(folder / "tmp") for folder in folders}
    graders = [p for p, places in processes() if places[0] in wanted]
    for grader in graders:
        signal_safely(grader, signal.SIGTERM)
    psutil.wait_procs(graders, timeout=GRACE_SECONDS)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        left = [
            process
            for process, places in processes()
            if any(str(folder) in place for folder in folders for place in places)
        ]
        if not left:
            break
        for process in left:
            signal_safely(process, signal.SIGKILL)
        psutil.wait_procs(left, timeout=1)
    for folder in folders:
        remove_tree(folder)


def adopt_orphans(adopt: bool = True) -> bool:
    """What those that we start leave behind becomes a child of ours instead of init's, or no longer.

    Returns whether it did before. Who adopts must also bury: see `end_orphans`.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)
    return bool(before.value)


def end_orphans(graders: set[int]) -> None:
    """End our children that are no graders: what a killed grader left and whatever that started."""
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        orphans = [child for child in psutil.Process().children() if child.pid not in graders]
        if not orphans:
            return
        for orphan in orphans:  # its own children come to us when it is gone
            signal_safely(orphan, signal.SIGKILL)
        psutil.wait_procs(orphans, timeout=1)


def processes():
    """Every process that we may look at, with its TMPDIR, its folder and its other variables."""
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            yield process, [variables.get("TMPDIR", ""), process.cwd(), *variables.values()]
        except (psutil.Error, OSError):
            continue


def signal_safely(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        pass
