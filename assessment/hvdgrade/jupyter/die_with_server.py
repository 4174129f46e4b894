"""Run the grader until it ends or until the pipe at standard input is closed.

    python -m hvdgrade.jupyter.die_with_server PATH -np 2 --profile cpu --json result.json

The Jupyter server starts this with a pipe. When the pipe closes, because the learner cancels, because
the server stops or because it was killed, the grading ends, and with it everything that it started.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from hvdgrade.sandbox.untrusted_files import remove_tree

PATIENCE_SECONDS = 12.0  # what the grader gets to end its submission and to tidy up
LIMIT_SECONDS = 3 * 3600.0  # no grading of one submission takes so long
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main(arguments: list[str]) -> int:
    """Run `hvdgrade run` with these arguments. Returns its exit code, 128 + signal if it has none."""
    prctl = ctypes.CDLL(None).prctl
    # Whatever the grading leaves behind becomes our child instead of init's, so none gets lost.
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(ending, signal.default_int_handler)
    # A grader that must be killed leaves its files behind. A submission may run as another user and
    # passes through here to what it is shown.
    temporary = tempfile.mkdtemp(prefix="hvdgrade-work-")
    os.chmod(temporary, 0o711)
    grader = subprocess.Popen(
        [sys.executable, "-m", "hvdgrade.cli", "run", *arguments],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": temporary},
        # Should we be killed, the grader is told to end. One thread here: this is safe.
        preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
    )
    try:
        # Nobody ever writes to the pipe: it is readable when it has been closed.
        select.select([sys.stdin, os.pidfd_open(grader.pid)], [], [], LIMIT_SECONDS)
    except KeyboardInterrupt:
        pass
    end(grader)
    remove_tree(Path(temporary))
    return grader.returncode if grader.returncode >= 0 else 128 - grader.returncode


def end(grader: subprocess.Popen) -> None:
    """Ask the grader to end, as Ctrl-C would; then kill what is left of all that it started."""
    if grader.poll() is None:
        grader.terminate()  # not SIGINT: a shell that puts a server into the background blocks it
        try:
            grader.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                pass
        psutil.wait_procs(left, timeout=1)
    grader.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
