"""Measure seconds and epochs that labs/cifar10_torch.py needs to reach the target of the assessment."""

import re
import time

import torch

from hvdlab.cli import end_when_told
from hvdlab.gpu_report import processes
from hvdlab.gpu_report.data import load
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.machine import CHECKOUT
from hvdlab.gpu_report.measuring import device, name
from hvdlab.system.hardware import visible_gpus

SCRIPT = CHECKOUT / "labs" / "cifar10_torch.py"
SECONDS = 60.0  # time limit of a run
EPOCH = re.compile(r"epoch (\d+) .*train ([\d.]+)  held-out ([\d.]+)  ([\d.]+) s")
REACHED = re.compile(r"target reached after epoch (\d+), ([\d.]+) s")


def main(findings: Findings) -> None:
    """Train on one rank and on two ranks, which share a GPU, and report both trainings."""
    end_when_told()
    where = device()
    gpu = torch.cuda.is_available()
    data, kind = load()
    findings.fact("images", kind)
    arguments = ["--epochs", "6"] if gpu else ["--epochs", "1", "--batch-size", "16"]
    shown = {"CUDA_VISIBLE_DEVICES": (visible_gpus() or ["0"])[0]} if gpu else {}
    measure = findings.rows("", name(where), "bfloat16 where fast", "s")
    for ranks in (1, 2):
        label = f"{ranks} rank{'s' * (ranks > 1)}" + (" on one GPU" if gpu else "")
        began = time.monotonic()
        command = processes.python_command(ranks, str(SCRIPT), *arguments)
        ended = processes.run(command, SECONDS, {**processes.rank_variables(ranks, gpu), **shown})
        seconds = time.monotonic() - began
        epochs = EPOCH.findall(ended.output)
        if ended.code != 0 or not epochs:
            findings.fact(label, ended.why, "a whole training", False)
            continue
        _, train, held_out, _ = epochs[-1]
        findings.fact(
            f"{label}: accuracy after {len(epochs)} epochs", f"train {train}, held out {held_out}"
        )
        reached = REACHED.search(ended.output)
        wanted = gpu and not data.synthetic
        findings.fact(
            f"{label}: target (train 0.75, held out 0.70, two epochs in a row)",
            f"reached after epoch {reached[1]}, {reached[2]} s" if reached else "not reached",
            "reached" if wanted else "",
            bool(reached) or not wanted,
        )
        stamps = [0.0, *(float(epoch[3]) for epoch in epochs)]
        lengths = [after - before for before, after in zip(stamps, stamps[1:], strict=False)]
        measure(f"{label}: an epoch, evaluation included", lengths)
        what = f"{label}: the whole run, with start-up"
        findings.measure("", what, name(where), "bfloat16 where fast", "s", [seconds])


if __name__ == "__main__":
    start(main)
