"""Measure how much `hvdlab check` slows a script down: runs with and without it, in turns.

    python -m tests.measurements.check_overhead [--runs 6] [NAME ...]

The script is the finished script of lab 5. The measurement is images per second of processor time in the
second epoch, on a single rank, so that neither other work on the machine nor the exchange counts. The check
records all events, but does not cut loops.
"""

import argparse
import os
import re
import statistics
import tempfile
from pathlib import Path

from hvdlab import launch
from hvdlab.check.watched_run import WATCHED_RANK
from hvdlab.exercises import lab05_script_edits as edits

ROOT = Path(__file__).resolve().parents[2]
LAB4 = ["--epochs", 2, "--images", 3000, "--heldout", 100]
SPEED = r"([\d,]+) images/s"


def measure(script, watched):
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "HVDLAB_RUN_DIR": f"{folder}/run",
            "HVDLAB_CHECK": folder,
            "HVDLAB_CHECK_STEPS": "1000000",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "labs"), os.environ.get("PYTHONPATH", "")]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        command = [WATCHED_RANK, script] if watched else [script]
        output = launch.run(*command, *LAB4, ranks=1, timeout=300, show=False, **options)
    return float(re.findall(SPEED, output)[-1].replace(",", ""))


parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--runs", type=int, default=6, help="of each kind (default 6)")
parser.add_argument("frameworks", nargs="*", default=["torch", "keras"], metavar="NAME")
args = parser.parse_args()

with tempfile.TemporaryDirectory() as folder:
    for framework in args.frameworks:
        path = Path(folder, f"lab4_{framework}.py")
        text = edits.after(list(edits.STEPS)[-1], framework)
        path.write_text(text.replace("time.monotonic()", "time.process_time()"), encoding="utf-8")
        plain, costs = [], []
        for _ in range(args.runs):
            plain.append(measure(path, watched=False))
            costs.append(100 * (plain[-1] / measure(path, watched=True) - 1))
        print(
            f"{framework:6} plain: median {statistics.median(plain):,.0f} images/s of processor "
            f"time; overhead: median {statistics.median(costs):.1f} %, from {min(costs):.1f} to "
            f"{max(costs):.1f} %, n = {args.runs}",
            flush=True,
        )
