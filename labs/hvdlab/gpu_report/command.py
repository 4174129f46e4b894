"""The command `hvdlab gpu`: check and measure the GPUs of this machine, and write one report."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdlab.gpu_report import machine, results, runner
from hvdlab.gpu_report.parts import PARTS, Part
from hvdlab.gpu_report.results import Report, State
from hvdlab.system import file_system, hardware

EPILOG = """\
examples:
  hvdlab gpu                                say what it will do, and ask
  hvdlab gpu --yes --out runs/gpu           start without asking
  hvdlab gpu --yes --only facts operations images
  hvdlab gpu --yes --out runs/gpu_new --against runs/gpu/gpu.json

exit codes:
  0  all parts are fine on a GPU
  1  a part failed, was too slow or had no time left
  2  there is no GPU (all parts then run on the processor with tiny sizes), the arguments are wrong,
     or nothing was started
"""
BUDGET_SECONDS = 540


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab gpu`."""
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--out", type=Path, default=Path("runs/gpu"), metavar="DIR",
        help="folder for gpu.json and gpu.md (default runs/gpu)",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=_seconds, default=BUDGET_SECONDS, metavar="SECONDS",
        help=f"limit of all parts together (default {BUDGET_SECONDS}); the most valuable parts run first",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="PART",
        help=f"run only these parts: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument(
        "--against", type=_older, metavar="OLD.json",
        help="compare with the gpu.json of an older run",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="start without asking")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"expected seconds from 1 to 86400, got {text!r}")
    return seconds


def _older(text: str) -> Path:
    try:
        results.read_parts(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def main(args: argparse.Namespace) -> int:
    """Run `hvdlab gpu` and return its exit code: see EPILOG."""
    parts = [part for part in PARTS if not args.only or part.name in args.only]
    if not args.yes and not wants_to_start(parts, args.budget, args.out):
        return 2
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        file_system.write_text(args.out / "gpu.md", "")
    except OSError as error:
        print(f"hvdlab: --out: {args.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    here = machine.look()
    print(here.headline.strip("*# "), flush=True)
    report = runner.run(
        parts, here, args.out, args.budget, lambda line: print(line, flush=True), args.against
    )
    print(f"\n{summary(report)} Report: {args.out / 'gpu.md'}, {args.out / 'gpu.json'}")
    return exit_code(report)


def wants_to_start(parts: Sequence[Part], budget: float, out: Path) -> bool:
    """Say what the command would do and how long that takes, and return whether the user wants it.

    Without a terminal nobody can answer, so the answer is no.

    Args:
        budget: limit of all parts together, in seconds.
    """
    seconds = min(budget, sum(part.seconds for part in parts))
    names = ", ".join(part.name for part in parts)
    print(
        f"hvdlab gpu checks and measures the GPUs of this machine. Parts ({len(parts)}): {names}.\n"
        f"They take at most {seconds:.0f} s ({seconds / 60:.0f} min), and need "
        f"{'all GPUs and cores' if hardware.gpus() else 'all cores: nvidia-smi shows no GPU here'}.\n"
        f"The report is written to {out / 'gpu.md'} and {out / 'gpu.json'}.",
        flush=True,
    )
    if not sys.stdin.isatty():
        print(
            "hvdlab: nothing was started, because nobody can confirm: add --yes.", file=sys.stderr
        )
        return False
    try:
        answer = input("Start? [y/N] ").strip().lower()
    except EOFError:
        answer = ""
    if answer in ("y", "yes"):
        return True
    print("hvdlab: nothing was started.", file=sys.stderr)
    return False


def summary(report: Report) -> str:
    """Return one sentence with the number of parts in each state."""
    states = [part.state for part in report.parts]
    counts = [f"{states.count(state)} {state}" for state in State if state in states]
    lost = sum(one.lost for one in report.comparisons)
    worse = f" {lost} measurements lost against {report.against}." if lost else ""
    return f"{len(states)} parts in {report.seconds:.0f} s: {', '.join(counts)}.{worse}"


def exit_code(report: Report) -> int:
    """Return 0, 1 or 2: see EPILOG."""
    if not report.gpu:
        return 2
    return int(any(part.state not in (State.OK, State.SKIPPED) for part in report.parts))
