"""Start a launcher on this machine, give its ranks a suitable environment, and end them reliably.

Typing `mpirun -np N python script.py` by hand works too. The environment below makes the ranks faster on
a CPU. It also allows mpirun to run as root and to start more ranks than there are physical cores.
"""

import contextlib
import os
import queue
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvdlab import HvdlabError
from hvdlab.launch import process_tree
from hvdlab.system import open_mpi, tensorflow_log
from hvdlab.system.hardware import physical_cores, usable_cores
from hvdlab.system.held_folder import held_folder

CHANNELS = ("stdout", "stderr")
POLL_SECONDS = 0.1  # that `printed_lines` waits for a line


class LaunchError(HvdlabError):
    """Ranks failed or did not end. The message is one sentence, then the last lines that they printed."""


@dataclass(frozen=True)
class Place:
    """Where a rank was shortly before the time limit.

    Attributes:
        rank: its number.
        state: for example "is in `comm.Recv(received, source=0)`" or "did not start".
        code: the lines of the function in which it was, () if that is not known.
        line: index in `code` of the line that it was executing. None if that is not known.
    """

    rank: int
    state: str
    code: tuple[str, ...] = ()
    line: int | None = None


class TimeUp(LaunchError):
    """Ranks did not end within the time limit.

    Attributes:
        places: where each rank was, if `call` started them.
    """

    def __init__(self, message: str, places: tuple[Place, ...] = ()) -> None:
        super().__init__(message)
        self.places = places


def mpirun_command(ranks: int, script: str | Path, *arguments: str) -> list[str]:
    """Return the command `mpirun -np RANKS python SCRIPT ARGUMENTS` as a list.

    Returns:
        The words of the command.
    """
    return ["mpirun", "-np", str(ranks), "python", str(script), *arguments]


def environment(ranks: int) -> dict[str, str]:
    """Return the environment variables with which `ranks` local processes share this machine well.

    They replace options of mpirun, so that the command line stays `mpirun -np N python script.py`.

    Args:
        ranks: number of ranks on this machine.

    Returns:
        Names and values, to be added to the environment of this process.
    """
    threads = max(1, usable_cores() // ranks)
    variables = {
        "PATH": open_mpi.search_path(),  # finds the mpirun and the python of this environment
        # Limit the threads per rank, because two ranks that use the same core slow each other down.
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "1",
        tensorflow_log.LEVEL: tensorflow_log.level(),
        # A waiting rank must not spin, because it would use a core that another rank needs.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # The same as --bind-to none, so that Horovod's background thread can run on any free core.
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        **open_mpi.home(),
    }
    # By default mpirun starts no more ranks than there are physical cores, even if each core has several
    # hardware threads.
    if ranks > len(physical_cores()):
        variables |= open_mpi.OVERSUBSCRIBE
    if os.geteuid() == 0:
        variables["OMPI_ALLOW_RUN_AS_ROOT"] = variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return open_mpi.spelled(variables)


@contextmanager
def started(
    command: list[str], variables: dict[str, str], stderr: int = subprocess.STDOUT
) -> Iterator[subprocess.Popen]:
    """Start a launcher whose output is a pipe. All processes that it started here end with the block.

    Args:
        command: the launcher and its arguments.
        variables: environment variables in addition to those of this process.
        stderr: STDOUT for one pipe with both channels, PIPE for one pipe per channel.

    Yields:
        The launcher.
    """
    mark = uuid.uuid4().hex
    with held_folder("hvdlab-mpirun-") as folder:
        # All mpirun processes of a user share a folder, and an mpirun that ends removes it. If another mpirun
        # is just starting in that folder, it fails with "listener thread failed to start". So each one
        # gets a folder of its own.
        own = open_mpi.spelled({"PRTE_MCA_prte_local_tmpdir_base": str(folder.path)})
        process = subprocess.Popen(
            command,
            # PYTHONUNBUFFERED makes lines arrive when they are printed, not when the script ends.
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                **own,
                **variables,
                process_tree.MARK_VARIABLE: mark,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,  # `end` finds the processes by their session
            pass_fds=folder.locks,  # mpirun holds the folder as long as it runs
        )
        try:
            yield process
        finally:
            process_tree.end(process, mark=mark)
            process.stdout.close()
            if process.stderr:
                process.stderr.close()


def printed_lines(process: subprocess.Popen) -> Iterator[tuple[str, str] | None]:
    """Yield the lines that a launcher prints, when they arrive, until both of its pipes are closed.

    Yields:
        (text, channel), where the channel is "stdout" or "stderr". None if no line has arrived for
        POLL_SECONDS, so that the caller can do something else, such as watching a time limit.
    """
    arrived: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def read(channel: str) -> None:
        with contextlib.suppress(ValueError):  # `started` closed the pipe
            for line in getattr(process, channel).buffer:
                arrived.put((line.decode(errors="replace"), channel))
        arrived.put(("", channel))

    for channel in CHANNELS:
        threading.Thread(target=read, args=(channel,), daemon=True).start()
    still_open = len(CHANNELS)
    while still_open:
        try:
            text, channel = arrived.get(timeout=POLL_SECONDS)
        except queue.Empty:
            yield None
            continue
        if text:
            yield text, channel
        else:
            still_open -= 1
