"""Run a command with a time limit, and end all processes that it started here."""

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass

from hvdlab.launch import local, process_tree


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: its exit code; None if the time limit ended it.
        output: all that it printed.
    """

    code: int | None
    output: str

    @property
    def tail(self) -> str:
        """The last lines of the output."""
        return "\n".join(self.output.rstrip().splitlines()[-30:])[-3000:]

    @property
    def why(self) -> str:
        """The exit code, and the line of the output that most likely gives the reason."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip(" -\n")]
        reason = ([line for line in lines if "Error" in line] or lines or ["it printed nothing"])[
            -1
        ]
        end = "ended by the time limit" if self.code is None else f"exit code {self.code}"
        return f"{end}: {reason[:300]}"


def run(command: list[str], seconds: float, variables: dict[str, str] | None = None) -> Ended:
    """Run one command; the other arguments are those of `run_together`."""
    return run_together([command], seconds, variables)[0]


def run_together(
    commands: list[list[str]], seconds: float, variables: dict[str, str] | None = None
) -> list[Ended]:
    """Run commands at the same time, and return how each of them ended.

    Their output must be short, because this process does not read it until it waits for a command.
    """
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(local.started(one, variables or {})) for one in commands]
        try:
            return [_ended(one, max(0.1, until - time.monotonic())) for one in started]
        except BaseException:
            process_tree.end(*started)  # all at once: the stack would end them one after another
            raise


def _ended(process: subprocess.Popen, seconds: float) -> Ended:
    try:
        output, _ = process.communicate(timeout=seconds)
        return Ended(process.returncode, output)
    except subprocess.TimeoutExpired as late:
        printed = late.output or ""
        return Ended(
            None, printed if isinstance(printed, str) else printed.decode(errors="replace")
        )


def rank_variables(ranks: int, gpu: bool = True) -> dict[str, str]:
    """Return the environment variables of processes that may share the GPUs of this machine.

    Args:
        ranks: number of processes.
        gpu: whether there is a GPU. Without a GPU each process has one thread, because the sizes are so
            small there that several threads would mostly wait for each other.
    """
    variables = local.environment(max(ranks, 1))
    variables.pop("CUDA_VISIBLE_DEVICES", None)  # it hides GPUs from more ranks than there are GPUs
    return variables if gpu else {**variables, "OMP_NUM_THREADS": "1"}


def python_command(ranks: int, *arguments: str) -> list[str]:
    """Return the command that runs this Python on ranks of mpirun, or as a single process.

    Args:
        ranks: number of processes; 1 leaves mpirun out.
    """
    python = [sys.executable, *arguments]
    return python if ranks == 1 else [*local.mpirun_command(ranks, "")[:3], *python]
