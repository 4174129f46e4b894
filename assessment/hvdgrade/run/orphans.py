"""End what outlived its parent, processes and folders, and make processes end together with their parent.

The modules that start a grader (batch/worker.py and jupyter/die_with_server.py) and the sandboxed run share
these functions.
"""

import ctypes
import signal
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil

from hvdgrade.sandbox.untrusted_files import remove_tree
from hvdlab.system.held_folder import left_over

PREFIX = "hvdgrade-"  # of the name of every folder for temporary files
SHARED_MEMORY = Path("/dev/shm")
GRACE_SECONDS = 15.0  # how long a grader may take after SIGTERM to end its submission and clean up
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 1, 36, 37


def end_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent ends, even by kill -9.

    The setting survives exec. It has no effect if the parent has ended before the call.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def adopt_orphans(adopt: bool = True) -> bool:
    """Make this process, instead of init, the parent of orphans among its descendants, or stop doing so.

    A process that adopts orphans must also reap them, see `end_orphans`.

    Args:
        adopt: whether to adopt orphans from now on. Default: True.

    Returns:
        Whether this process adopted orphans before the call.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)
    return bool(before.value)


def end_orphans(graders: Collection[int] = ()) -> None:
    """End and reap all children of this process that are not graders.

    These are the processes that a killed grader left behind. When one of them ends, its children become
    children of this process if it adopts orphans, and are ended, too.

    Args:
        graders: process ids of the graders that continue to run. Default: none.
    """
    kill_until_gone(
        lambda: [child for child in psutil.Process().children() if child.pid not in graders]
    )


def kill_until_gone(find: Callable[[], list[psutil.Process]]) -> None:
    """Kill processes repeatedly until none is left, or GRACE_SECONDS have passed.

    One round is not enough, because a process can start another one before it is killed.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and (processes := find()):
        signal_all(processes, signal.SIGKILL)
        psutil.wait_procs(processes, timeout=1)


def signal_all(processes: Collection[psutil.Process], number: int) -> None:
    """Send a signal to each process, and ignore those that have ended or belong to another user.

    Args:
        number: number of the signal.
    """
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            pass


def clear_left_over() -> None:
    """End what graders of this user left behind when they were killed, and remove their folders.

    A grader that is killed with SIGKILL cannot clean up. The next one does, in TMPDIR and in shared memory.
    """
    folders = [folder for place in (None, SHARED_MEMORY) for folder in left_over(PREFIX, place)]
    if folders:
        end_and_clear(folders)


def end_and_clear(folders: list[Path]) -> None:
    """End all processes that belong to these folders, graders first and with SIGTERM; remove the folders."""
    # On SIGTERM a grader ends its submission and cleans up. A grader of a batch is recognised by its TMPDIR,
    # the folder `tmp` that the batch gave it. The processes in its sandbox have other values of TMPDIR.
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
