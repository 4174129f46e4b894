"""Start the ranks of a benchmark, read what each of them measured, and keep it."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

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
        raise BenchFailed(f"{what} needs {mpirun}, which is not there: run `make setup`")
    process = subprocess.Popen(
        [mpirun, "-np", count, python, "-m", module, *map(str, arguments)],
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3"},
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


# --- what the commands share ------------------------------------------------------------------------


def count(text: str) -> int:
    """The type of an argument that is a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def result(text: str) -> Path:
    """The type of an argument that names a file to write: better to know before an hour of measuring."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder that exists, got {text!r}")
    return path


def figure(text: str) -> Path:
    """The type of an argument that names a figure to draw."""
    path = result(text)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise argparse.ArgumentTypeError(f"expected a .png, .svg or .pdf, got {text!r}")
    if not find_spec("matplotlib"):
        raise argparse.ArgumentTypeError("figures need matplotlib: run `make setup`")
    return path


def add_results(parser: argparse.ArgumentParser) -> None:
    """The arguments of `keep`."""
    parser.add_argument("--json", type=result, metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--plot", type=figure, metavar="FILE", help="draw them into FILE (.png, .svg, .pdf)"
    )


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def keep(args: argparse.Namespace, found: dict, plot) -> None:
    """Write what was measured, with the arguments, to `args.json`, and draw it into `args.plot`."""
    if args.json:
        plain = (int, float, str, bool, list)
        settings = {name: value for name, value in vars(args).items() if isinstance(value, plain)}
        args.json.write_text(json.dumps({**settings, "measured": found}, indent=2))
    if args.plot:
        plot(found, args.plot)
