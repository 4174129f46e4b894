"""Run the grader until it ends or until the pipe at standard input is closed.

    python -m hvdgrade.jupyter.die_with_server PATH -np 2 --profile cpu --json result.json

The Jupyter server starts this process with a pipe. The pipe closes when the learner cancels, or when the
server ends in any way, even by kill -9. This process then ends the grader and everything that it started.
"""

import os
import select
import signal
import subprocess
import sys

import psutil

from hvdgrade.run import orphans
from hvdgrade.sandbox.untrusted_files import remove_tree
from hvdlab.system.held_folder import HeldFolder

LIMIT_SECONDS = 3 * 3600.0  # no grading of one submission takes this long
END_SECONDS = 2 * orphans.GRACE_SECONDS + 6  # how long `end` and the removal of the files may take


def main(arguments: list[str]) -> int:
    """Run `hvdgrade run` and end it with the server.

    Returns:
        The exit code of the grader, or 128 plus the number of the signal that ended it.
    """
    # Processes that the grader leaves behind become children of this process, so that it can end them.
    orphans.adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    # A grader that must be killed leaves its files in this folder. A submission may run as another user, who
    # passes through this folder to the files that the grader shows it.
    temporary = HeldFolder(f"{orphans.PREFIX}work-")
    temporary.path.chmod(0o711)
    grader = subprocess.Popen(
        [sys.executable, "-m", "hvdgrade.cli", "run", *arguments],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary.path)},
        # If this process is killed, the grader ends. preexec_fn is safe here: there is only one thread.
        preexec_fn=orphans.end_with_parent,
    )
    try:
        # The server never writes to the pipe, so the pipe becomes readable only when it is closed.
        select.select([sys.stdin, os.pidfd_open(grader.pid)], [], [], LIMIT_SECONDS)
    except KeyboardInterrupt:
        pass
    end(grader)
    remove_tree(temporary.path)
    temporary.release()
    return grader.returncode if grader.returncode >= 0 else 128 - grader.returncode


def end(grader: subprocess.Popen) -> None:
    """Request the grader to end, and after GRACE_SECONDS kill it; then kill all that it started."""
    if grader.poll() is None:
        grader.terminate()  # not SIGINT, which a shell blocks for a server in the background
        try:
            grader.wait(orphans.GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            grader.kill()
    grader.wait()  # before the next line, which would take the exit code of a child that has ended
    orphans.kill_until_gone(lambda: psutil.Process().children(recursive=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
