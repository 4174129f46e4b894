"""The programs that start ranks. Each has a module here, which says the same four things of it:

start(ranks, script, arguments, variables, hosts, slots)   what is typed, with which variables
Reader()                what it prints, taken apart: whose line it is, which rank ended first
send(process, number)   a signal to all ranks
tell_where(process, ranks)   make them say in which line of the script they are
"""

import ast
import contextlib
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import psutil


class End(NamedTuple):
    """How the rank that ended first ended, as its launcher tells it."""

    rank: int
    code: int  # as a shell says it: 128 + the number of the signal
    signal: str = ""  # such as "signal 9 (Killed) on host1"


class Line(NamedTuple):
    """What a rank printed; `rank` is None for what the launcher itself has to say."""

    rank: int | None
    channel: str  # "stdout" or "stderr"
    text: str


def abort_children(process: subprocess.Popen, variable: str, ranks: set[int] | None) -> None:
    """End ranks (None: all) that are children of the launcher, so that each prints its stack.

    PYTHONFAULTHANDLER=1 makes them, see plan.py.

    Args:
        variable: of the environment, that holds a rank's number.
    """
    children = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process.pid).children()
    for child in children:
        with contextlib.suppress(psutil.Error):  # one that has just ended: the others shall print
            rank = int(child.environ().get(variable, "-1"))
            if rank >= 0 and (ranks is None or rank in ranks):
                child.send_signal(signal.SIGABRT)


def mpi_of(script: str | Path) -> str:
    """The library by which the ranks of a script find each other through MPI, as its imports tell.

    "Horovod", "mpi4py", or "" for none, and for a script that joins a group of torch.distributed itself.
    """
    try:
        text = Path(script).read_text()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return ""  # Python will say what is wrong
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported.update((getattr(node, "module", None) or "").split("."))
            imported.update(part for alias in node.names for part in alias.name.split("."))
    if "rendezvous" in text or "init_process_group" in text:
        return ""
    return "Horovod" if "horovod" in imported else "mpi4py" if "mpi4py" in imported else ""
