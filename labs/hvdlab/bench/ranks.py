"""Start the ranks of a benchmark, and read what each of them measured."""

import json
import os
import shutil
import subprocess
import sys

from hvdlab import launch

LIMIT_SECONDS = 300


class BenchFailed(Exception):
    """A variant did not run: one sentence with its name and its last words."""


def run(module: str, ranks: int, *arguments, **environment: str) -> list[dict]:
    """Run `python -m MODULE ARGUMENTS` on one-thread ranks; return what each gave to `tell`."""
    environment = {**os.environ, **launch.environment(max(ranks, 2)), **environment}
    environment["OMP_NUM_THREADS"] = "1"  # also for one rank: two threads would fake its speed
    environment["TF_NUM_INTRAOP_THREADS"] = "1"
    return start(module, ranks, environment, *arguments)


def start(module: str, ranks: int, environment: dict[str, str], *arguments) -> list[dict]:
    """The same in an environment that is given, whole."""
    mpirun, _, count, python = launch.command(ranks, "")[:4]
    what = f"{arguments[0]} on {ranks} ranks"
    if not shutil.which(mpirun, path=environment["PATH"]):
        raise BenchFailed(
            f"{what} needs {mpirun}, which is not there: `hvdlab doctor` says what mends it"
        )
    process = subprocess.Popen(
        [mpirun, "-np", count, python, "-m", module, *map(str, arguments)],
        # All of them measure processors: torch trains there, and TensorFlow would take a GPU.
        env={**environment, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # by which `launch.end` finds the ranks, also after Ctrl-C
    )
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{what} took over {LIMIT_SECONDS} s") from None
    finally:
        launch.end(process)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or len(lines) != ranks:
        last = (errors.strip() or "nothing printed").splitlines()[-1]
        raise BenchFailed(f"{what} failed: {last}")
    return [json.loads(line) for line in lines]


def tell(measured: dict) -> None:
    """Called once by each rank, with what it measured."""
    # One write, with its newline: lines of several ranks must not mix.
    sys.stdout.write(json.dumps(measured) + "\n")
    sys.stdout.flush()
