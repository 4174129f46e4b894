"""How N ranks are started on this machine: the command, the environment it needs, and their end.

`mpirun -np N python script.py` typed by hand works too; what the environment below adds is speed on
a CPU (and permission, for root and for more ranks than physical cores).

    run("train.py", "--epochs", 3, ranks=2)      # prints what the ranks print
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from hvdlab.system import open_mpi
from hvdlab.system.hardware import physical_cores, usable_cores

MARK = "HVDLAB_STARTED_AS"  # in the environment of all that one launch starts


class LaunchError(Exception):
    """Ranks that failed or did not end: one sentence, then what they printed last."""

    def _render_traceback_(self):  # what IPython shows instead of a traceback
        return [str(self)]


class TimeUp(LaunchError):
    """Ranks that did not end in time."""


def command(ranks: int, script: str | Path, *arguments: str) -> list[str]:
    """`mpirun -np RANKS python SCRIPT ARGUMENTS` as a list."""
    return ["mpirun", "-np", str(ranks), "python", str(script), *arguments]


def environment(ranks: int) -> dict[str, str]:
    """The variables under which `ranks` local processes share this machine well.

    Each is the environment's spelling of an mpirun option, so the command line stays the plain one.
    """
    threads = max(1, usable_cores() // ranks)
    variables = {
        "PATH": open_mpi.search_path(),  # the mpirun and the python of this environment
        # A rank that uses its neighbour's core makes both slower.
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "1",
        # A rank that waits must not spin: it would steal its neighbour's core.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # --bind-to none: Horovod's own thread may run wherever a core is free.
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    # By itself mpirun starts no more ranks than there are physical cores, whatever threads they have.
    if ranks > len(physical_cores()):
        variables |= open_mpi.OVERSUBSCRIBE
    if os.geteuid() == 0:
        variables["OMPI_ALLOW_RUN_AS_ROOT"] = variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return open_mpi.spelled(variables)


def run(
    script: str | Path,
    *arguments,
    ranks: int = 2,
    timeout: float = 600,
    show: bool = True,
    **variables: str,
) -> str:
    """Run `mpirun -np RANKS python SCRIPT ARGUMENTS`, and return what its ranks print.

    Nothing that it starts outlives the call: an interrupt (the stop button of a notebook), an error
    and the time limit all end every rank.

    Args:
        arguments: of the script, turned into text.
        timeout: seconds.
        show: print each line as it comes.
        variables: of the environment, beside those of `environment(ranks)`.

    Raises:
        LaunchError: the script is not there, a rank failed, or the time was up.
    """
    if not Path(script).is_file():
        raise LaunchError(f"{script} is not a file: name the script that the ranks shall run.")
    late = threading.Event()
    output = []
    variables = {**environment(ranks), **variables}
    with started(command(ranks, script, *map(str, arguments)), variables) as process:
        alarm = threading.Timer(timeout, lambda: (late.set(), end(process)))
        try:
            alarm.start()
            for line in process.stdout:
                output.append(line)
                if show:
                    print(line, end="", flush=True)
            process.wait()
        finally:
            alarm.cancel()
    if late.is_set() or process.returncode:
        what = f"did not end within {timeout:g} s" if late.is_set() else "failed"
        says = ", see above." if show else f":\n{''.join(output[-60:])}"
        kind = TimeUp if late.is_set() else LaunchError
        raise kind(f"{Path(script).name} on {ranks} ranks {what}{says}")
    return "".join(output)


@contextmanager
def started(
    command: list[str], variables: dict[str, str], stderr: int = subprocess.STDOUT
) -> Iterator[subprocess.Popen]:
    """A launcher whose output is a pipe. After the block nothing that it started here is left.

    Args:
        stderr: STDOUT for one pipe of both channels, PIPE for one each.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="hvdlab-mpirun-", ignore_cleanup_errors=True) as folder:
        # An mpirun that ends removes the folder that all of a user's share, also one that another
        # has just made to begin in: that one says that its listener thread failed to start.
        own = open_mpi.spelled({"PRTE_MCA_prte_local_tmpdir_base": folder})
        process = subprocess.Popen(
            command,
            # Lines shall arrive when they are printed, not when the script ends.
            env={**os.environ, "PYTHONUNBUFFERED": "1", **own, **variables, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,  # by which `end` finds what this starts
        )
        try:
            yield process
        finally:
            end(process, mark)
            process.stdout.close()
            if process.stderr:
                process.stderr.close()


def end(process: subprocess.Popen, mark: str = "") -> None:
    """End a launcher and all that it started: politely, and after five seconds for certain.

    That is its session, and what has its mark: torchrun gives each rank a session of its own. Both are
    there with or without a living launcher above them.
    """
    try:
        process.terminate()  # launchers pass it on to their ranks
        process.wait(5)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also after a second interrupt
        until = time.monotonic() + 5  # one that waits for a dead disk cannot be ended
        # Again until none is left: one may be born meanwhile, or has no environment as it just begins.
        while time.monotonic() < until and (left := _left(process.pid, mark)):
            for number in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(number, signal.SIGKILL)
            process.poll()
        process.wait()


def _left(session: int, mark: str) -> list[int]:
    """The processes that are of a session, or have a mark, and have not ended."""
    found = []
    for number in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            one = psutil.Process(number)
            if os.getsid(number) == session or mark and one.environ().get(MARK) == mark:
                if one.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    found.append(number)
    return found
