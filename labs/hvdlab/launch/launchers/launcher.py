"""Common parts of the modules for the launchers, the programs that start ranks.

Each launcher (mpirun, srun, torchrun) has a module here with a function `start`, a class `Reader`, and the
object `LAUNCHER`, which has both.
"""

import ast
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from hvdlab.launch import process_tree
from hvdlab.launch.hosts import Host


@dataclass(frozen=True)
class Request:
    """Which ranks a launcher should start.

    Attributes:
        ranks: number of ranks.
        script: the Python file.
        arguments: of the script.
        variables: environment variables that the ranks should have.
        hosts: hosts that the user named; empty for this machine or the nodes of a Slurm allocation.
        slots: number of ranks that may start on each host or node; empty if it is not known.
    """

    ranks: int
    script: str
    arguments: Sequence[str]
    variables: dict[str, str]
    hosts: list[Host]
    slots: list[int]


class End(NamedTuple):
    """How the rank that ended first ended, as its launcher reports it.

    Attributes:
        rank: its number.
        code: exit code as in a shell: 128 + the number of the signal for a rank that a signal ended.
        signal: such as "signal 9 (Killed) on host1"; "" for a rank that no signal ended.
    """

    rank: int
    code: int
    signal: str = ""


class Line(NamedTuple):
    """A line of output.

    Attributes:
        rank: that printed it. None: it is a message of the launcher itself.
        channel: "stdout" or "stderr".
        text: without the line end.
    """

    rank: int | None
    channel: str
    text: str


class OutputReader(Protocol):
    """What the class `Reader` of each launcher does.

    Attributes:
        first: how the rank that ended first ended. None: the launcher reported no such rank (yet).
        lost: name of a host to which the launcher lost the connection; "" if there is none.
        said: why the launcher itself failed, in its own words; "" if it did not say so.
    """

    first: End | None
    lost: str
    said: str

    def read(self, text: str, channel: str) -> list[Line]:
        """Return the lines to show for one line of the launcher's output.

        Args:
            text: the line. It may end with a newline.
            channel: on which the launcher printed it, "stdout" or "stderr".
        """

    def rest(self) -> list[Line]:
        """Return the remaining lines to show when the output has ended."""


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks. Those of mpirun and torchrun are its child processes on this machine.

    Attributes:
        start: returns the command that starts the ranks, and the environment variables that it needs.
        Reader: parses the output: which rank printed a line, which rank ended first.
        rank_variable: name of the environment variable that holds the number of a rank.
    """

    start: Callable[[Request], tuple[list[str], dict[str, str]]]
    Reader: type[OutputReader]
    rank_variable: str

    def send(self, process: subprocess.Popen, number: int) -> None:
        """Send a signal to the launcher, which forwards those that ask a process to end to its ranks."""
        process.send_signal(number)

    def tell_where(self, process: subprocess.Popen, ranks: set[int] | None) -> None:
        """End ranks so that they print the line of the script that they are executing.

        They print it because plan.py sets PYTHONFAULTHANDLER=1.

        Args:
            process: the launcher.
            ranks: numbers of ranks. None: all ranks.
        """

        def is_wanted(environment: dict[str, str]) -> bool:
            rank = int(environment.get(self.rank_variable, "-1"))
            return rank >= 0 and (ranks is None or rank in ranks)

        process_tree.signal_children(process, signal.SIGABRT, is_wanted)


def mpi_of(script: str | Path) -> str:
    """Return the library that connects the ranks of a script through MPI, read from its imports.

    Returns:
        "Horovod" or "mpi4py"; "" for a script that uses neither, and for a script that joins a process
        group of torch.distributed itself.
    """
    try:
        text = Path(script).read_text(encoding="utf-8")
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
