"""The ranks of a submission that is being graded, found below the process that grades it."""

import contextlib
import time

import psutil


def ranks(grader: psutil.Process) -> list[psutil.Process]:
    """Those that run now: a jail calls every script by the same name."""
    found = []
    for process in grader.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if process.cmdline() == ["python", "assessment.py"]:
                found.append(process)
    return found


def wait_for_ranks(grader: psutil.Process, count: int = 2, seconds: float = 120) -> None:
    """Before them a grader tries the walls, with processes that are no submission's."""
    deadline = time.monotonic() + seconds
    while len(ranks(grader)) < count:
        assert time.monotonic() < deadline and grader.status() != psutil.STATUS_ZOMBIE
        time.sleep(0.1)
