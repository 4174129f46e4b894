"""`hvdlab doctor`: says what is wrong with a set-up and how to mend it, and proves that ranks work.

Everything is found by trying: programs are asked for their version, a child imports each framework
with Horovod, and two ranks all-reduce through mpirun. Frameworks are never imported here.

`--json` prints one document:

    {"labs_will_run": bool,       # no check failed; the exit code says the same
     "checks": [{"id": str,       # one of CHECKS, in their order, then PROOFS; not on Linux: the first
                 "title": str,
                 "state": "ok" | "warning" | "failure",
                 "seen": str,     # one sentence
                 "mend": str}],   # a command for a shell; "" where none is needed or would do
     "ranks": int | null,         # how many suit this machine
     "launch": str | null,        # the line that starts them; null where none can be given
     "seconds": float}            # that the doctor took
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time

from hvdlab.arguments import above_zero
from hvdlab.doctor.answers import FAILURE, OK, WARNING, Answer, counted
from hvdlab.doctor.checks import environment, frameworks, gpus, launchers, machine, software
from hvdlab.doctor.checks.allreduce import allreduce, allreduce_on_gpus
from hvdlab.doctor.run_programs import ask, probe
from hvdlab.system import open_mpi

EPILOG = """\
examples:
  hvdlab doctor
  hvdlab doctor --json > doctor.json     to send along with a question

exit codes: 0 the labs will run (there may be warnings), 1 they will not
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
    ("tmpdir", "TMPDIR", machine.temporary_folder),
    ("variables", "MPI settings", environment.variables),
    ("root", "User", environment.root),
    ("container", "Container", environment.container),
    ("slurm", "Slurm", environment.slurm),
    ("data", "Data sets", environment.data),
    ("kernel", "Jupyter kernel", software.kernel),
)
PROOFS = (  # id, title, what `tell` says before it, check that also takes a limit in seconds
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
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument(
        "--timeout",
        type=above_zero,
        default=60.0,
        metavar="SECONDS",
        help="limit of all imports together, and of each start of ranks (default 60)",
    )


def main(args: argparse.Namespace) -> int:
    began = time.monotonic()
    if platform.system() == "Linux":
        findings, said = examine(args.timeout)
    else:  # what the other checks ask of the system is not there
        findings, said = [finding(*CHECKS[0], {})], {}
    will_run = all(finding["state"] != FAILURE for finding in findings)
    try:
        ranks = machine.ranks(said)
        launch = launchers.launch_line(ranks, "assessment.py")
    except Exception:  # a package of ours is missing, or Linux: a failure above says so
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
    """Ask, check, and let ranks all-reduce: the findings, and what was said.

    Args:
        limit: seconds for the questions, and again for each start of ranks.
    """
    tell("Importing the frameworks and Horovod, each in a process of its own (5 to 15 s) ...")
    said = ask(questions(), limit)
    findings = [finding(*check, said) for check in CHECKS]
    for id, title, text, proof in PROOFS:
        tell(text)
        findings.append(finding(id, title, lambda said, proof=proof: proof(said, limit), said))
    return findings, said


def questions() -> dict:
    """What is asked of other programs: name -> command."""
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


def finding(id: str, title: str, check, said: dict) -> dict:
    """What a check answers; a check that raises is a failure, never the doctor's end."""
    try:
        answer = check(said)
    except Exception as error:
        text = f"this check itself failed ({type(error).__name__}: {error})"
        answer = Answer(FAILURE, text)
    return {"id": id, "title": title, **answer._asdict()}


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(findings: list, launch: str | None) -> None:
    """Print the findings as a table, then what mends them: commands are not wrapped, to be copied."""
    try:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table
    except ImportError:  # the wrong Python, or half a set-up: the findings matter, not their looks
        for one in findings:
            print(f"{one['state']:8} {one['title']:15} {one['seen']}")
            if one["mend"]:
                print(f"    {one['mend']}")
        print("\nThe labs will not run: begin with the first failure.")
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
    mends: dict = {}  # one command may mend several rows
    for one in wrong[FAILURE] + wrong[WARNING]:
        if one["mend"]:
            mends.setdefault(one["mend"], []).append(one)
    if mends:
        console.print("\n[bold]What mends it[/], the gravest first:")
    for mend, rows in mends.items():
        titles = "; ".join(row["title"] for row in rows)
        console.print(f"[{STYLES[rows[0]['state']]}]{titles}[/]")
        console.print(f"    {mend}", soft_wrap=True, markup=False)
    if launch:
        console.print("\nThe launch line for this machine:")
        console.print(f"    {launch}", soft_wrap=True, markup=False)
    failures, warnings = len(wrong[FAILURE]), len(wrong[WARNING])
    if failures:
        console.print(f"\n[bold red]The labs will not run[/]: {counted(failures, 'failure')}.")
    else:
        extra = f", with {counted(warnings, 'warning')}" if warnings else ""
        console.print(f"\n[bold green]The labs will run[/]{extra}.")
