"""End processes that outlived their parent, and make processes end together with their parent.

The modules that start a grader (batch/worker.py and jupyter/die_with_server.py) and the sandboxed run share
these functions.
"""

import ctypes
import signal
import time
from collections.abc import Callable, Collection

import psutil

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

    Args:
        find: returns the processes that still run.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and (processes := find()):
        signal_all(processes, signal.SIGKILL)
        psutil.wait_procs(processes, timeout=1)


def signal_all(processes: Collection[psutil.Process], number: int) -> None:
    """Send a signal to each process, and ignore those that have ended or belong to another user.

    Args:
        processes: the processes.
        number: number of the signal.
    """
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            pass
