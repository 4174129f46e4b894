"""Run a script on N ranks of this machine from Python, such as in a notebook.

run("train.py", "--epochs", 3, ranks=2)      # prints what the ranks print

If a rank fails, the error says which one and why, in the same words as the command `hvdlab run`.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

from hvdlab.launch import local
from hvdlab.launch.launchers import mpirun, torchrun
from hvdlab.launch.launchers.launcher import Line, Request
from hvdlab.launch.local import LaunchError, TimeUp
from hvdlab.launch.process_tree import GRACE_SECONDS
from hvdlab.launch.rank_output import RankOutput
from hvdlab.launch.script_file import must_be_script
from hvdlab.system import open_mpi, tensorflow_log
from hvdlab.system.rank_limit import too_many_ranks

LAST_LINES = 60  # of the output, in the message of an error
READERS = {"mpirun": mpirun.Reader, "torchrun": torchrun.Reader}


def run(
    script: str | Path,
    *arguments: object,
    ranks: int = 2,
    timeout: float = 600,
    show: bool = True,
    launcher: str = "mpirun",
    force: bool = False,
    **variables: str,
) -> str:
    """Run `mpirun -np RANKS python SCRIPT ARGUMENTS` and return what its ranks print.

    No process that it starts is left after the call. An interrupt (the stop button of a notebook), an error
    and the time limit all end every rank. If one rank fails, the errors that it causes on other ranks are
    left out, because they would hide the cause.

    Args:
        script: the Python file.
        arguments: of the script; they are converted to text.
        ranks: number of ranks. Default 2.
        timeout: time limit in seconds. Default 600.
        show: print each line when it arrives. Default True.
        launcher: the program that starts the ranks: "mpirun" (default), or "torchrun" for a script of
            torch.distributed (`torchrun --standalone --nproc-per-node RANKS SCRIPT ARGUMENTS`).
        force: start the ranks even if this machine has too few cores or too little memory for so many.
            Default False.
        variables: environment variables in addition to those of `environment(ranks)`.

    Returns:
        The lines of all ranks, in the order in which they arrived, standard output and standard error.

    Raises:
        LaunchError: the script does not exist or is a notebook, there are too many ranks, a rank failed, or
            the time limit was reached (`TimeUp`). The message says which rank failed first, and how.
        FileNotFoundError: there is no such launcher.
        ValueError: the launcher is neither mpirun nor torchrun.
    """
    if launcher not in READERS:
        raise ValueError(f"launcher must be mpirun or torchrun. Received: launcher={launcher!r}")
    must_be_script(script)
    if not force and (sentence := too_many_ranks(ranks, "ranks", "force=True")):
        raise LaunchError(sentence)
    lines: list[str] = []

    def take(line: Line) -> None:
        text = line.text.replace("\r", "\n")  # progress bars print \r to begin a line again
        lines.append(f"{text}\n")
        if show:
            print(text, flush=True)

    variables = {**local.environment(ranks), **variables}
    log_level = variables[tensorflow_log.LEVEL]
    output = RankOutput(ranks, READERS[launcher](), take, log_level)
    command, variables = _command(launcher, ranks, script, [*map(str, arguments)], variables)
    with local.started(command, variables, stderr=subprocess.PIPE) as process:
        late = _pass_on(process, output, time.monotonic() + timeout)
    output.settle(everything=True)
    name = f"{Path(script).name} on {ranks} ranks"
    last = "".join(lines[-LAST_LINES:])
    if late:
        where = ", see above." if show else f":\n{last}"
        raise TimeUp(f"{name} did not end within {timeout:g} s{where}")
    stall = {**os.environ, **variables}.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "")
    sentence = output.why(process.returncode, launcher, stall)[0].rstrip(".")
    if sentence:
        raise LaunchError(
            f"{name} failed, see above.\n{sentence}."
            if show
            else f"{name} failed.\n{sentence}.\n{last}"
        )
    return "".join(lines)


def _command(
    launcher: str, ranks: int, script: str | Path, arguments: list[str], variables: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command of a launcher, and the environment variables for its ranks."""
    if launcher == "torchrun":
        request = Request(ranks, str(script), arguments, variables, hosts=[], slots=[])
        (_, *rest), variables = torchrun.start(request)
        # torchrun is this module. So the ranks run in the environment of this `python`, as with mpirun.
        return ["python", "-m", "torch.distributed.run", *rest], variables
    program, *rest = local.mpirun_command(ranks, script, *arguments)
    return [program, *open_mpi.tag_output(), *rest], variables


def _pass_on(process: subprocess.Popen, output: RankOutput, until: float) -> bool:
    """Give the lines of a launcher to `output` until it has ended; return whether the time limit ended it.

    At the time limit the launcher gets SIGTERM, so that the ranks may still print something.

    Args:
        process: the running launcher.
        output: takes the lines.
        until: the time limit, as a value of `time.monotonic()`.
    """
    asked = None  # when the launcher got SIGTERM
    for printed in local.printed_lines(process):
        if printed:
            output.line(*printed)
        output.settle()
        now = time.monotonic()
        if asked is None and now > until:
            asked = now
            process.terminate()
        elif asked is not None and now - asked >= GRACE_SECONDS:
            process.kill()  # otherwise `started` would wait once more
            return True
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    return asked is not None
