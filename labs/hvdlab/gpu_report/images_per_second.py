"""Measure training speed in each precision and memory format, and the memory that a step needs."""

import itertools

import torch

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, milliseconds, name, peak_mebibytes
from hvdlab.gpu_report.networks import Setting, settings, step

PRECISIONS = ("float32", "TF32", "bfloat16")


def main(findings: Findings) -> None:
    """Measure every network in each precision and memory format."""
    where = device()
    gpu = where.type == "cuda"
    precisions = PRECISIONS if gpu else ("float32", "bfloat16")
    for network, batch in settings(gpu):
        speed = findings.rows("Training speed", name(where), "", "images/s", more_is_better=True)
        peak = findings.rows("Peak memory of a step", name(where), "", "MiB")
        for precision, channels_last in itertools.product(precisions, (False, True)):
            setting = Setting(network, batch, precision, channels_last)
            one = step(setting, where)
            rates = [1000 * batch / ms for ms in milliseconds(one, where, 1.2)]
            speed(str(setting), rates, precision)
            if memory := peak_mebibytes(one, where):
                peak(str(setting), [memory], precision)
            del one
            if gpu:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    start(main)
