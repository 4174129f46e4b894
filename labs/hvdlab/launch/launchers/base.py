"""Common parts of the modules for the launchers, the programs that start ranks.

Each launcher (mpirun, srun, torchrun) has a module here with the same four functions and classes:

start(ranks, script, arguments, variables, hosts, slots)   returns the command and its variables
Reader()                     parses the launcher's output: which rank printed a line, which rank ended first
send(process, number)        sends a signal to all ranks
tell_where(process, ranks)   makes ranks print which line of the script they are executing
"""

import ast
import contextlib
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import psutil


class End(NamedTuple):
    """How the rank that ended first ended, as its launcher reports it."""

    rank: int
    code: int  # exit code as in a shell: 128 + the number of the signal for a rank ended by one
    signal: str = ""  # such as "signal 9 (Killed) on host1"


class Line(NamedTuple):
    """A line that a rank printed; `rank` is None for a message of the launcher itself."""

    rank: int | None
    channel: str  # "stdout" or "stderr"
    text: str


def abort_children(process: subprocess.Popen, variable: str, ranks: set[int] | None) -> None:
    """End ranks that are child processes of the launcher, so that each prints its stack.

    They print it because plan.py sets PYTHONFAULTHANDLER=1.

    Args:
        process: the launcher.
        variable: name of the environment variable that holds the number of a rank.
        ranks: the ranks to end. None: all ranks.
    """
    children = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process.pid).children()
    for child in children:
        # A child may have just ended. The others must still print their stacks.
        with contextlib.suppress(psutil.Error):
            rank = int(child.environ().get(variable, "-1"))
            if rank >= 0 and (ranks is None or rank in ranks):
                child.send_signal(signal.SIGABRT)


def mpi_of(script: str | Path) -> str:
    """Return the library that connects the ranks of a script through MPI, read from its imports.

    Returns:
        "Horovod" or "mpi4py"; "" for a script that uses neither, and for a script that joins a process
        group of torch.distributed itself.
    """
    try:
        text = Path(script).read_text()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return ""  # Python will report what is wrong when the ranks start
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported.update((getattr(node, "module", None) or "").split("."))
            imported.update(part for alias in node.names for part in alias.name.split("."))
    if "rendezvous" in text or "init_process_group" in text:
        return ""
    return "Horovod" if "horovod" in imported else "mpi4py" if "mpi4py" in imported else ""
