"""Seconds and epochs that labs/cifar10_torch.py needs to the target of the assessment."""

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
SECONDS = 60.0  # of a run
EPOCH = re.compile(r"epoch (\d+) .*train ([\d.]+)  held-out ([\d.]+)  ([\d.]+) s")
REACHED = re.compile(r"target reached after epoch (\d+), ([\d.]+) s")


def main(findings: Findings) -> None:
    end_when_told()
    where = device()
    gpu = torch.cuda.is_available()
    data, kind = load()
    findings.fact("images", kind)
    arguments = ["--epochs", "6"] if gpu else ["--epochs", "1", "--batch-size", "16"]
    peer = None
    for ranks in (1, 2):
        shown = {"CUDA_VISIBLE_DEVICES": (visible_gpus() or ["0"])[0]} if gpu else {}
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
        labels = name(where), "bfloat16 where fast", "s"
        found = findings.measure(
            "", f"{label}: an epoch, evaluation included", *labels, lengths, peer
        )
        peer = peer or found
        findings.measure("", f"{label}: the whole run, with start-up", *labels, [seconds])


if __name__ == "__main__":
    start(main)
