"""Run a command with a time limit. Nothing that it started is left afterwards."""

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass

from hvdlab.launch import local, process_tree


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (None: the time limit ended it), and all that it printed."""

    code: int | None
    output: str

    @property
    def tail(self) -> str:
        return "\n".join(self.output.rstrip().splitlines()[-30:])[-3000:]

    @property
    def why(self) -> str:
        """The exit code, and the line of the output that most likely says why."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip(" -\n")]
        said = ([line for line in lines if "Error" in line] or lines or ["it printed nothing"])[-1]
        return f"{'ended by the time limit' if self.code is None else f'exit code {self.code}'}: {said[:300]}"


def run(command: list[str], seconds: float, variables: dict[str, str] | None = None) -> Ended:
    """Run `command` for at most `seconds`; `variables` are added to the environment."""
    return run_together([command], seconds, variables)[0]


def run_together(
    commands: list[list[str]], seconds: float, variables: dict[str, str] | None = None
) -> list[Ended]:
    """Run all of `commands` at the same time, for at most `seconds`. What they print must be short."""
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
    """The environment of `ranks` processes that may share the GPUs of this machine.

    Args:
        gpu: without one each process has a single thread, because more of them would only wait for each
            other with the tiny sizes there.
    """
    variables = local.environment(max(ranks, 1))
    variables.pop("CUDA_VISIBLE_DEVICES", None)  # it hides GPUs from more ranks than there are GPUs
    return variables if gpu else {**variables, "OMP_NUM_THREADS": "1"}


def python_command(ranks: int, *arguments: str) -> list[str]:
    """This Python with `arguments`, on `ranks` ranks of mpirun or as a single process (ranks=1)."""
    python = [sys.executable, *arguments]
    return python if ranks == 1 else [*local.mpirun_command(ranks, "")[:3], *python]
