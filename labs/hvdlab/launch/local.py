"""Start N ranks on this machine with mpirun, give them a suitable environment, and end them reliably.

Typing `mpirun -np N python script.py` by hand works too. The environment below makes the ranks faster on
a CPU. It also allows mpirun to run as root and to start more ranks than there are physical cores.

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

MARK = "HVDLAB_STARTED_AS"  # variable in the environment of all processes that one launch starts


class LaunchError(Exception):
    """Ranks failed or did not end. The message is one sentence, then the last lines that they printed."""

    def _render_traceback_(self):  # what IPython shows instead of a traceback
        return [str(self)]


class TimeUp(LaunchError):
    """Ranks did not end within the time limit."""


def mpirun_command(ranks: int, script: str | Path, *arguments: str) -> list[str]:
    """Return the command `mpirun -np RANKS python SCRIPT ARGUMENTS` as a list."""
    return ["mpirun", "-np", str(ranks), "python", str(script), *arguments]


def environment(ranks: int) -> dict[str, str]:
    """Return the environment variables with which `ranks` local processes share this machine well.

    They replace options of mpirun, so that the command line stays `mpirun -np N python script.py`.
    """
    threads = max(1, usable_cores() // ranks)
    variables = {
        "PATH": open_mpi.search_path(),  # finds the mpirun and the python of this environment
        # Limit the threads per rank, because two ranks that use the same core slow each other down.
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "1",
        # A waiting rank must not spin, because it would use a core that another rank needs.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # The same as --bind-to none, so that Horovod's background thread can run on any free core.
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    # By default mpirun starts no more ranks than there are physical cores, even if each core has several
    # hardware threads.
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
    """Run `mpirun -np RANKS python SCRIPT ARGUMENTS` and return what its ranks print.

    No process that it starts is left after the call. An interrupt (the stop button of a notebook), an error
    and the time limit all end every rank.

    Args:
        script: the Python file.
        arguments: of the script; they are converted to text.
        ranks: number of ranks.
        timeout: time limit in seconds.
        show: print each line when it arrives.
        variables: environment variables in addition to those of `environment(ranks)`.

    Raises:
        LaunchError: the script does not exist, a rank failed, or the time limit was reached (`TimeUp`).
    """
    if not Path(script).is_file():
        raise LaunchError(f"{script} is not a file: name the script that the ranks shall run.")
    late = threading.Event()
    output = []
    variables = {**environment(ranks), **variables}
    with started(mpirun_command(ranks, script, *map(str, arguments)), variables) as process:
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
    """Start a launcher whose output is a pipe, and end all processes that it started here with the block.

    Args:
        command: the launcher and its arguments.
        variables: environment variables in addition to those of this process.
        stderr: STDOUT for one pipe with both channels, PIPE for one pipe per channel.

    Yields:
        The launcher.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="hvdlab-mpirun-", ignore_cleanup_errors=True) as folder:
        # All mpirun processes of a user share a folder, and an mpirun that ends removes it. If another mpirun
        # is just starting in that folder, it fails with "listener thread failed to start". So each one
        # gets a folder of its own.
        own = open_mpi.spelled({"PRTE_MCA_prte_local_tmpdir_base": folder})
        process = subprocess.Popen(
            command,
            # PYTHONUNBUFFERED makes lines arrive when they are printed, not when the script ends.
            env={**os.environ, "PYTHONUNBUFFERED": "1", **own, **variables, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,  # `end` finds the started processes by their session
        )
        try:
            yield process
        finally:
            end(process, mark)
            process.stdout.close()
            if process.stderr:
                process.stderr.close()


def end(process: subprocess.Popen, mark: str = "") -> None:
    """End a launcher and all processes that it started: with SIGTERM, and after five seconds with SIGKILL.

    These are the processes of its session and those with its mark in their environment. The mark is
    needed because torchrun gives each rank a session of its own. Both find processes whose launcher has
    already ended, too.
    """
    try:
        process.terminate()  # launchers forward it to their ranks
        process.wait(5)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also after a second interrupt
        until = time.monotonic() + 5  # a process that waits for a failed disk cannot be ended
        # Repeat until no process is left. A process may start in the meantime, and a process that is just
        # starting has no environment yet, so its mark cannot be read.
        while time.monotonic() < until and (left := _left(process.pid, mark)):
            for number in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(number, signal.SIGKILL)
            process.poll()
        process.wait()


def _left(session: int, mark: str) -> list[int]:
    """Return the ids of the processes that belong to a session or have a mark, and have not ended."""
    found = []
    for number in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            one = psutil.Process(number)
            if os.getsid(number) == session or mark and one.environ().get(MARK) == mark:
                if one.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                    found.append(number)
    return found
