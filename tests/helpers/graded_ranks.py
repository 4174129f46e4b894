"""Find the ranks of a submission that is being graded, among the children of its grader."""

import contextlib
import time

import psutil


def ranks(grader: psutil.Process) -> list[psutil.Process]:
    """Return the ranks that run now. In the sandbox every script has the same name."""
    found = []
    for process in grader.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if process.cmdline() == ["python", "assessment.py"]:
                found.append(process)
    return found


def wait_for_ranks(grader: psutil.Process, count: int = 2, seconds: float = 120) -> None:
    """Wait until the ranks run. Before, the grader tests the sandbox with other processes."""
    deadline = time.monotonic() + seconds
    while len(ranks(grader)) < count:
        assert time.monotonic() < deadline and grader.status() != psutil.STATUS_ZOMBIE
        time.sleep(0.1)
