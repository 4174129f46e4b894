"""Measure how many seconds labs/cifar10_fast.py needs to 94 %, with several seeds."""

import json
import statistics
import sys

import torch

from hvdlab.cli import end_when_told
from hvdlab.gpu_report import processes
from hvdlab.gpu_report.data import load
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.machine import CHECKOUT
from hvdlab.gpu_report.measuring import device, name

SCRIPT = CHECKOUT / "labs" / "cifar10_fast.py"
SECONDS = 55.0  # time limit of all runs
RUNS = 3
PUBLISHED = (
    ("airbench94, eager, A100", "3.83 s (its README; n = 1000 runs, mean accuracy 0.9401)"),
    ("airbench94 with the Muon optimizer, A100", "2.59 s (its authors)"),
)


def main(findings: Findings) -> None:
    """Run the script, and report times, accuracies and published times."""
    end_when_told()
    gpu = torch.cuda.is_available()
    data, kind = load()
    findings.fact("images", kind)
    arguments = ["--runs", str(RUNS if gpu else 1), "--json"]
    arguments += [] if gpu else ["--epochs", "1", "--images", "64", "--width", "8"]
    variables = processes.rank_variables(1, gpu)
    ended = processes.run([sys.executable, str(SCRIPT), *arguments], SECONDS, variables)
    runs = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    if ended.code != 0 and not runs:
        raise SystemExit(f"{ended.tail}\n{SCRIPT.name}: {ended.why}")
    labels = name(device()), "bfloat16" if gpu else "float32"
    what = "copies, training and evaluation, after a warm-up"
    findings.measure("", what, *labels, "s", [run["seconds"] for run in runs])
    what, accuracies = "accuracy on the test images", [100 * run["accuracy"] for run in runs]
    findings.measure("", what, *labels, "%", accuracies, more_is_better=True)
    mean = statistics.fmean(accuracies)
    wanted = gpu and not data.synthetic
    findings.fact("mean accuracy", f"{mean:.2f} %, n = {len(runs)}", "at least 93.8 %" if wanted else "",
                  mean >= 93.8 or not wanted)  # fmt: skip
    for what, published in PUBLISHED:
        findings.fact(f"published: {what}", published)


if __name__ == "__main__":
    start(main)
