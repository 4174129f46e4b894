"""The command `hvdlab check`: start the ranks, watch for a deadlock, and show what was found."""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from hvdlab import launch
from hvdlab.arguments import positive
from hvdlab.check import source_facts
from hvdlab.check.catalogue import Finding
from hvdlab.check.deadlock import Deadlock, read_events
from hvdlab.check.diagnosis import judge
from hvdlab.check.run_events import Run
from hvdlab.launch.preflight import ranks_come_first
from hvdlab.script_analysis.script import Unreadable

EPILOG = """\
examples:
  hvdlab check -np 2 train.py --epochs 5     the arguments of the script come after it
  hvdlab check -np 2 --json found.json train.py

The script runs in this folder and may write what it always writes; loops that train are cut after
--steps steps, and a loop around them after two rounds, so that the script comes to its own end.
Exit code: 0 nothing found, 1 mistakes found, 2 the script could not be checked.
"""
WATCHED_RANK = Path(__file__).with_name("watched_rank.py")


class CheckError(Exception):
    """A script that could not be checked: one sentence."""

    def _render_traceback_(self):  # what IPython shows instead of a traceback
        return [str(self)]


@dataclass
class Checked:
    """What came of a check."""

    findings: list[Finding]
    error: str | None  # the script failed of its own: one sentence; findings may be missing
    ended: str  # "itself", "deadlock" or "time": who ended it
    steps: int  # that rank 0 made
    seconds: float
    output: str = field(repr=False)  # what the ranks printed
    events: dict[int, list[dict]] = field(repr=False)  # what they did, by rank: see `events`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-np", dest="ranks", type=positive, default=2, help="ranks (default 2)")
    parser.add_argument(
        "--steps", type=positive, default=8, help="training steps before a loop is cut (default 8)"
    )
    parser.add_argument(
        "--timeout", type=positive, default=300, help="seconds that it may take (default 300)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings to FILE")
    parser.add_argument("--show", action="store_true", help="show what the script prints")
    parser.add_argument("script", type=Path, metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="its arguments")


def main(args: argparse.Namespace) -> int:
    try:
        ranks_come_first(args.arguments)
        print(
            f"hvdlab: running {args.script} on {args.ranks} ranks for a few steps",
            file=sys.stderr,
            flush=True,
        )
        found = check(
            args.script,
            *args.arguments,
            ranks=args.ranks,
            steps=args.steps,
            timeout=args.timeout,
            show=args.show,
        )
    except (CheckError, launch.LaunchError) as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 2
    show(found, args.script, args.ranks)
    if args.json:
        try:
            args.json.write_text(
                json.dumps(as_dict(found, args.script, args.ranks), indent=2) + "\n"
            )
        except OSError as error:
            print(
                f"hvdlab: --json {args.json} cannot be written: {error.strerror}.", file=sys.stderr
            )
            return 2
    if found.findings:
        return 1
    return 2 if found.error else 0


def check(
    script: str | Path,
    *arguments,
    ranks: int = 2,
    steps: int = 8,
    timeout: float = 300,
    show: bool = False,
    **variables: str,
) -> Checked:
    """Run a script on some ranks for a few steps, and name its distributed mistakes.

    Args:
        arguments: of the script.
        steps: training steps after which a loop is cut.
        timeout: seconds.
        show: print what the ranks print.
        variables: of the environment.

    Raises:
        CheckError: the script cannot be read, or did not come to one step of training.
    """
    script = Path(script)
    facts = _read(script)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hvdlab-check-") as name:
        folder = Path(name)
        options = {
            "HVDLAB_CHECK": str(folder),
            "HVDLAB_CHECK_STEPS": str(steps),
            "HVDLAB_RUN_DIR": str(folder / "run"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(WATCHED_RANK.parents[2]), os.environ.get("PYTHONPATH")])
            ),
            **variables,
        }
        guard = Deadlock(folder, ranks)
        arguments = [script.absolute(), *map(str, arguments)]
        try:
            with guard:
                output = launch.run(
                    WATCHED_RANK, *arguments, ranks=ranks, timeout=timeout, show=show, **options
                )
        except FileNotFoundError:
            raise CheckError("there is no mpirun here: run `hvdlab doctor`.") from None
        except launch.LaunchError as error:  # the ranks' own words are in the events
            output = str(error)
            late = isinstance(error, launch.TimeUp)
        else:
            late = False
        events = read_events(folder, ranks)
    run = Run(events)
    ended = "deadlock" if guard.found else "time" if late else "itself"
    crash = run.crash()
    findings = judge(events, facts)
    error = None
    if crash:
        where = f", line {crash[2]}" if crash[2] else ""
        error = f"rank {crash[0]} ended with {crash[1]}{where}"
    elif late:
        error = f"the script did not come to its end within {timeout:g} s"
    elif guard.found and not findings:
        error = f"the ranks wait for each other for ever.{run.waiting()}"
    elif not run.rank0("end") and not guard.found:
        error = f"the ranks ended early: {_last_line(output)}"
    for event in run.rank0("init"):
        if event["size"] != ranks:
            raise CheckError(
                f"mpirun started {ranks} ranks, and Horovod knows of {event['size']}: it was built "
                "for another MPI. Run `hvdlab doctor`."
            )
    made = len(run.rank0("step"))
    if not made and not findings:
        raise CheckError(f"{script.name} made no step of training: {error or _last_line(output)}")
    return Checked(findings, error, ended, made, time.monotonic() - began, output, events)


def _read(script: Path) -> source_facts.Facts:
    if not script.is_file():
        raise CheckError(f"{script} is not a file: name the training script to check.")
    try:
        facts = source_facts.read(script)
    except Unreadable as error:
        raise CheckError(f"Python cannot read {script.name}: {error}.") from None
    except OSError as error:
        raise CheckError(f"{script} cannot be read: {error}") from None
    if facts.other and not facts.horovod:
        raise CheckError(
            f"{script.name} trains by {facts.other}, and the mistakes that are known here are those of "
            "Horovod scripts: it cannot be checked."
        )
    return facts


def _last_line(output: str) -> str:
    """What was printed last, without the rules around a message of mpirun's."""
    lines = [" ".join(line.split()) for line in output.splitlines() if line.strip(" -")]
    return lines[-1][:300] if lines else "it printed nothing"


def as_dict(found: Checked, script: Path, ranks: int) -> dict:
    """What `--json` writes."""
    return {
        "script": str(script),
        "ranks": ranks,
        "steps": found.steps,
        "ended": found.ended,
        "error": found.error,
        "seconds": round(found.seconds, 1),
        "findings": [one._asdict() for one in found.findings],
    }


def show(found: Checked, script: Path, ranks: int, console=None) -> None:
    """Print the findings as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console()
    ran = f"{ranks} ranks, {found.steps} steps, {found.seconds:.0f} s"
    if found.error:
        console.print(f"{script.name}: {found.error}", markup=False, highlight=False)
    if not found.findings:
        if not found.error:
            console.print(f"{script.name}: nothing found ({ran})", markup=False, highlight=False)
        return
    table = Table(title=f"{script.name}: {ran}", show_lines=True, title_justify="left")
    table.add_column("where", no_wrap=True)
    table.add_column("mistake, what was seen of it, how to mend it")
    for one in found.findings:
        told = Text.assemble(
            (one.title, "bold"), f"  [{one.id}]\n{one.seen}\n", (one.mend, "green")
        )
        table.add_row(f"{script.name}:{one.line}" if one.line else script.name, told)
    console.print(table)
