"""End processes that lost their parent."""

import ctypes
import signal
import time

import psutil

GRACE_SECONDS = 15.0  # how long a grader may take after SIGTERM to end its submission and clean up
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


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


def end_orphans(graders: set[int]) -> None:
    """End all children of this process that are not graders.

    These are the processes that a killed grader left behind, and the processes that they started.

    Args:
        graders: process ids of the graders.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        orphans = [child for child in psutil.Process().children() if child.pid not in graders]
        if not orphans:
            return
        for orphan in orphans:  # when it has ended, its children become children of this process
            signal_safely(orphan, signal.SIGKILL)
        psutil.wait_procs(orphans, timeout=1)


def signal_safely(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        pass
