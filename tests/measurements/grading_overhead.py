"""Measure how long a grading takes in addition to its run: mpirun, `hvdlab run`, `hvdgrade run`, in turns.

    python -m tests.measurements.grading_overhead [--runs 3] [--framework keras]

The solution runs on two ranks and real CIFAR-10. A round takes about five minutes on a machine without other
work. "Plain" is mpirun with no setting except the permission to run as root. It is not a test, and pytest
does not run it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hvdlab.system import open_mpi

SOLUTIONS = Path(__file__).parents[2] / "assessment" / "solutions"
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def seconds(*command) -> float:
    """Return the wall time of a command in seconds; the command must succeed."""
    began = time.monotonic()
    environment = {**os.environ, **ROOT, "PATH": open_mpi.search_path()}
    ended = subprocess.run(
        [str(word) for word in command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if ended.returncode:
        sys.exit(f"{ended.stdout}{command[0]} ended with exit code {ended.returncode}.")
    return time.monotonic() - began


def spread(values: list[float]) -> str:
    deviation = f" +- {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation} ({min(values):.1f} to {max(values):.1f})"


parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--runs", type=int, default=3, help="of each way (default 3)")
parser.add_argument("--framework", choices=("torch", "keras"), default="torch")
args = parser.parse_args()

script = SOLUTIONS / args.framework / "assessment.py"
found: dict[str, list[float]] = {}
with tempfile.TemporaryDirectory() as folder:
    result = Path(folder, "result.json")
    ways = {
        "mpirun -np 2 python": ["mpirun", "-np", 2, sys.executable, script],
        "hvdlab run -np 2": [sys.executable, "-m", "hvdlab.cli", "run", "-np", 2, script],
        "hvdgrade run -np 2": [
            *(sys.executable, "-m", "hvdgrade.cli", "run", script, "-np", 2, "--json", result)
        ],
    }
    for run in range(1, args.runs + 1):
        for way, command in ways.items():
            found.setdefault(way, []).append(seconds(*command))
        document = json.loads(result.read_text(encoding="utf-8"))
        for stage, took in document["resources"]["stages"].items():
            found.setdefault(f"  of it: {stage}", []).append(took)
        more = found["hvdgrade run -np 2"][-1] - found["hvdlab run -np 2"][-1]
        found.setdefault("hvdgrade run less hvdlab run", []).append(more)
        print(f"round {run} of {args.runs}: {more:.1f} s more", file=sys.stderr, flush=True)

table = Table(title=f"The {args.framework} solution, seconds: mean +- standard deviation (range)")
table.add_column("what")
table.add_column(f"n = {args.runs}")
for what, values in found.items():
    table.add_row(what, spread(values))
Console().print(table)
