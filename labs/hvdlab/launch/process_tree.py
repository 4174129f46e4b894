"""End process trees: programs that we started, and every process that they started themselves.

`end` guarantees that when it returns, none of these processes runs on this machine any more:

* every process in the session of a program, because the programs are started with `start_new_session=True`;
* every process whose environment contains the mark of the launch (MARK_VARIABLE). The mark is needed because
  torchrun gives each rank a session of its own;
* also if the program itself has ended before, and also processes that are started while `end` runs: it
  searches again until it finds no process.

A program that still runs first gets SIGTERM, which launchers forward to their ranks, and GRACE_SECONDS to end
by itself. All processes that are left then get SIGKILL. If the program had ended before, they get SIGKILL
at once.

There are three exceptions. A process that starts a session of its own and also clears its environment is
not found. Processes on other hosts are ended by their launcher. The kernel cannot end a process that waits
for a failed disk: after KILL_SECONDS `end` stops trying, unless it is the program itself.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Set

import psutil

MARK_VARIABLE = "HVDLAB_STARTED_AS"  # in the environment of all processes that one launch starts
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
KILL_SECONDS = 5.0  # after which `end` stops sending SIGKILL
POLL_SECONDS = 0.01


def end(*programs: subprocess.Popen, mark: str = "") -> None:
    """End programs and all processes that they started. The text at the top says what is guaranteed.

    A second interrupt (Ctrl-C) during the grace period shortens it and is raised again at the end.

    Args:
        programs: started with `start_new_session=True`. They all share one grace period.
        mark: value of MARK_VARIABLE in the environment of these processes. Default: there is none, and only
            the sessions count.
    """
    until = time.monotonic() + GRACE_SECONDS
    try:
        for program in programs:
            program.terminate()
        for program in programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(max(0.0, until - time.monotonic()))
    finally:
        _kill({program.pid for program in programs}, mark, programs)
        for program in programs:
            program.wait()


def _kill(sessions: Set[int], mark: str, programs: tuple[subprocess.Popen, ...]) -> None:
    """Send SIGKILL to all processes of sessions and of a mark, for KILL_SECONDS or until none is left."""
    until = time.monotonic() + KILL_SECONDS
    # Repeat until no process is left. A process may start in the meantime, and a process that is just
    # starting has no environment yet, so its mark cannot be read.
    while time.monotonic() < until and (members := _members(sessions, mark)):
        for process in members:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for program in programs:
            program.poll()  # otherwise it stays a zombie
        time.sleep(POLL_SECONDS)


def _members(sessions: Set[int], mark: str) -> list[psutil.Process]:
    """Return the processes that belong to one of the sessions or have the mark, and have not ended."""
    members = []
    for number in psutil.pids():
        # A process may end at any time, and those of other users do not show their environment.
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            process = psutil.Process(number)
            if os.getsid(number) in sessions or (
                mark and process.environ().get(MARK_VARIABLE) == mark
            ):
                if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    members.append(process)
    return members


def signal_children(
    program: subprocess.Popen, number: int, is_wanted: Callable[[dict[str, str]], bool]
) -> None:
    """Send a signal to the child processes of a program that a condition selects.

    Args:
        program: the parent. If it has ended, no process gets the signal.
        number: of the signal.
        is_wanted: takes the environment of a child, and returns whether it gets the signal.
    """
    children = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(program.pid).children()
    for child in children:
        # A child may have just ended. The others must still get the signal.
        with contextlib.suppress(psutil.Error):
            if is_wanted(child.environ()):
                child.send_signal(number)
