"""Measure what the watch of `hvdlab check` costs a script: images/s with it and without, in turns.

    python tests/check_overhead.py [--runs 6]

The script of lab 4, finished, in torch and in Keras (two epochs, of which the second is taken, so that
nothing is compiled in it), and the assessment network in torch (seconds of an epoch, evaluation
included). Two ranks. The watch is whole, but cuts no loop.
"""

import argparse
import os
import re
import statistics
import tempfile
from pathlib import Path

from hvdlab import launch
from hvdlab.check.command import WATCH
from hvdlab.exercises import horovod_edits as edits

ROOT = Path(__file__).resolve().parents[1]
LAB4 = ["--epochs", 2, "--images", 4000, "--heldout", 100]
CIFAR10 = ["--epochs", 1, "--images", 2000]


def measure(script, arguments, watched, pattern):
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "HVDLAB_RUN_DIR": f"{folder}/run",
            "HVDLAB_CHECK": folder,
            "HVDLAB_CHECK_STEPS": "1000000",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "labs"), os.environ.get("PYTHONPATH", "")]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        command = [WATCH, script] if watched else [script]
        output = launch.run(*command, *arguments, ranks=2, timeout=300, show=False, **options)
    return float(re.findall(pattern, output)[-1].replace(",", ""))


parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--runs", type=int, default=6, help="of each kind (default 6)")
runs = parser.parse_args().runs

with tempfile.TemporaryDirectory() as folder:
    scripts = {}
    for framework in "torch", "keras":
        path = Path(folder, f"lab4_{framework}.py")
        path.write_text(edits.after(list(edits.STEPS)[-1], framework))
        scripts[path.stem] = (path, LAB4, r"([\d,]+) images/s", 1)
    cifar10 = ROOT / "labs" / "cifar10_torch.py"
    scripts["cifar10_torch"] = (cifar10, CIFAR10, r"([\d.]+) s$", -1)
    for name, (path, arguments, pattern, sign) in scripts.items():
        costs, plain = [], []
        for _ in range(runs):
            without = measure(path, arguments, False, pattern)
            with_it = measure(path, arguments, True, pattern)
            plain.append(without)
            costs.append((without / with_it) ** sign - 1)
        costs = sorted(100 * cost for cost in costs)
        print(
            f"{name:15} plain {statistics.median(plain):8,.1f} {'images/s' if sign > 0 else 's'}  "
            f"overhead: median {statistics.median(costs):.1f} %, from {costs[0]:.1f} to "
            f"{costs[-1]:.1f} %, n = {runs}",
            flush=True,
        )
