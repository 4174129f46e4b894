"""`hvdlab doctor`: say what is wrong with a set-up and how to fix it, and test that ranks can all-reduce.

The doctor tries everything out: it runs programs to get their version, imports each framework with Horovod in
a child process, and lets two ranks all-reduce through mpirun. It never imports a framework itself.

`--json` prints one document:

    {"labs_will_run": bool,       # no check failed; the exit code says the same
     "checks": [{"id": str,       # of CHECKS, in their order, then of PROOFS; without Linux the first
                 "title": str,
                 "state": "ok" | "warning" | "failure",
                 "seen": str,     # one sentence
                 "fix": str}],   # a command for a shell; "" if none is needed or known
     "ranks": int | null,         # number of ranks that suits this machine
     "launch": str | null,        # the command that starts them; null if there is none
     "seconds": float}            # run time of the doctor
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable

from hvdlab.arguments import above_zero
from hvdlab.doctor import outside_causes
from hvdlab.doctor.answers import FAILURE, OK, WARNING, Answer, ProgramOutput, counted
from hvdlab.doctor.checks import environment, frameworks, gpus, launchers, machine, software
from hvdlab.doctor.checks.allreduce import allreduce, allreduce_on_gpus
from hvdlab.doctor.run_programs import ask, probe
from hvdlab.system import open_mpi

EPILOG = """\
examples:
  hvdlab doctor
  hvdlab doctor --json > doctor.json     to send with a question

exit codes: 0 if the labs will run (there may be warnings), 1 if they will not
"""
CHECKS = (  # id, title, check
    ("python", "Python", software.python),
    ("packages", "Packages", software.packages),
    ("shadowing", "Import path", software.shadowing),
    ("compiler", "Compiler", software.compiler),
    ("frameworks", "Frameworks", frameworks.frameworks),
    ("horovod", "Horovod", frameworks.horovod),
    ("horovod_torch", "Horovod, torch", frameworks.horovod_torch),
    ("horovod_tensorflow", "Horovod, TF", frameworks.horovod_tensorflow),
    ("keras", "Keras", frameworks.keras),
    ("mpi", "MPI launcher", launchers.mpi),
    ("mpi4py", "mpi4py", launchers.mpi4py),
    ("gpus", "GPUs", gpus.gpus),
    ("gpus_tensorflow", "GPUs, TF", gpus.tensorflow),
    ("cores", "Cores", machine.cores),
    ("threads", "Threads", environment.threads),
    ("memory", "Memory", machine.memory),
    ("shm", "Shared memory", machine.shared_memory),
    ("disk", "Disk", machine.disk),
    ("file_systems", "File systems", machine.file_systems),
    ("tmpdir", "TMPDIR", machine.temporary_folder),
    ("variables", "MPI settings", environment.variables),
    ("root", "User", environment.root),
    ("container", "Container", environment.container),
    ("slurm", "Slurm", environment.slurm),
    ("data", "Data sets", environment.data),
    ("kernel", "Jupyter kernel", software.kernel),
)
PROOFS = (  # id, title, what `tell` prints before it, check that also takes a time limit in seconds
    ("allreduce", "All-reduce", "Two ranks all-reduce through mpirun (3 to 10 s) ...", allreduce),
    (
        "allreduce_gpus",
        "GPU all-reduce",
        "Ranks all-reduce on GPUs, if there are any ...",
        allreduce_on_gpus,
    ),
)
STYLES = {OK: "green", WARNING: "yellow", FAILURE: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab doctor` to its parser."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document instead of a table"
    )
    parser.add_argument(
        "--timeout",
        type=above_zero,
        default=60.0,
        metavar="SECONDS",
        help="time limit of all imports together, and of each start of ranks (default 60)",
    )


def main(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 0 if the labs will run, else 1."""
    began = time.monotonic()
    if platform.system() == "Linux":
        findings, outputs = examine(args.timeout)
    else:  # the other checks need Linux
        findings, outputs = [finding(*CHECKS[0], {})], {}
    will_run = all(finding["state"] != FAILURE for finding in findings)
    try:
        ranks = machine.ranks(outputs)
        launch = launchers.launch_line(ranks, "assessment.py")
    except Exception:  # a package or Linux is missing, and a failure above says so
        ranks = launch = None
    if args.json:
        found = {
            "labs_will_run": will_run,
            "checks": findings,
            "ranks": ranks,
            "launch": launch,
            "seconds": round(time.monotonic() - began, 1),
        }
        print(json.dumps(found, indent=2))
    else:
        show(findings, launch)
    return 0 if will_run else 1


def examine(limit: float) -> tuple:
    """Run the programs and all checks, and let ranks all-reduce.

    Args:
        limit: time limit in seconds for the programs, and again for each start of ranks.

    Returns:
        The findings, and the output of the programs by name.
    """
    tell("Importing the frameworks and Horovod, each in a process of its own (5 to 15 s) ...")
    outputs = ask(questions(), limit, **open_mpi.home())
    outputs = {**outputs, **outside_causes.find(outputs, limit)}
    findings = [finding(*check, outputs) for check in CHECKS]
    for id, title, text, proof in PROOFS:
        tell(text)
        findings.append(
            finding(id, title, lambda outputs, proof=proof: proof(outputs, limit), outputs)
        )
    return findings, outputs


def questions() -> dict:
    """Return the commands whose output the checks need: name -> command."""
    return {
        "tensorflow": probe("tensorflow"),
        "torch": probe("torch"),
        "mpi4py": probe("mpi4py"),
        "data": probe("data"),
        "mpirun": [open_mpi.mpirun() or "mpirun", "--version"],
        "mpirun on PATH": [launchers.typed() or "mpirun", "--version"],
        "c++": [os.environ.get("CXX", "g++"), "-dumpfullversion"],
        "cmake": ["cmake", "--version"],
        "nvidia-smi": ["nvidia-smi", *gpus.QUESTION],
        "nvidia-smi --list-gpus": ["nvidia-smi", "--list-gpus"],
    }


def finding(
    id: str, title: str, check: Callable[[dict], Answer], outputs: dict[str, ProgramOutput]
) -> dict:
    """Return the result of a check. If the check raises an error, its state is a failure."""
    try:
        answer = check(outputs)
    except Exception as error:
        text = f"this check itself failed ({type(error).__name__}: {error})"
        answer = Answer(FAILURE, text)
    return {"id": id, "title": title, **answer._asdict()}


def tell(text: str) -> None:
    """Print a line about the progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def show(findings: list, launch: str | None) -> None:
    """Print the findings as a table, then the commands that fix them, unwrapped so that they can be copied.

    Args:
        launch: the command that starts ranks on this machine. None: it is unknown.
    """
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:  # the wrong Python, or an incomplete set-up: print plain text
        for one in findings:
            print(f"{one['state']:8} {one['title']:15} {one['seen']}")
            if one["fix"]:
                print(f"    {one['fix']}")
        print("\nThe labs will not run: fix the first failure first.")
        return

    console = Console(highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in findings:
        state = f"[{STYLES[one['state']]}]{one['state']}[/]"
        table.add_row(state, one["title"], escape(one["seen"]))
    console.print(table)

    wrong = {state: [f for f in findings if f["state"] == state] for state in (FAILURE, WARNING)}
    fixes: dict = {}  # command -> the rows that it fixes
    for one in wrong[FAILURE] + wrong[WARNING]:
        if one["fix"]:
            fixes.setdefault(one["fix"], []).append(one)
    if fixes:
        console.print("\n[bold]Commands that fix it[/], the most serious problem first:")
    for fix, rows in fixes.items():
        titles = "; ".join(row["title"] for row in rows)
        console.print(f"[{STYLES[rows[0]['state']]}]{titles}[/]")
        console.print(f"    {fix}", soft_wrap=True, markup=False)
    if launch:
        console.print("\nThe command that starts ranks on this machine:")
        console.print(f"    {launch}", soft_wrap=True, markup=False)
    failures, warnings = len(wrong[FAILURE]), len(wrong[WARNING])
    if failures:
        console.print(f"\n[bold red]The labs will not run[/]: {counted(failures, 'failure')}.")
    else:
        extra = f", with {counted(warnings, 'warning')}" if warnings else ""
        console.print(f"\n[bold green]The labs will run[/]{extra}.")
