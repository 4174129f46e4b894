"""Training speed in each precision and memory format, and the memory that a step needs."""

import torch

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, milliseconds, name, peak_mebibytes
from hvdlab.gpu_report.networks import Setting, settings, step

PRECISIONS = ("float32", "TF32", "bfloat16")


def main(findings: Findings) -> None:
    where = device()
    for network, batch in settings(where.type == "cuda"):
        peer = memory_peer = None
        for precision in PRECISIONS if where.type == "cuda" else ("float32", "bfloat16"):
            for channels_last in (False, True):
                setting = Setting(network, batch, precision, channels_last)
                one = step(setting, where)
                rates = [1000 * batch / ms for ms in milliseconds(one, where, 1.2)]
                labels = str(setting), name(where), precision
                found = findings.measure(
                    "Training speed", *labels, "images/s", rates, peer, more_is_better=True
                )
                peer = peer or found
                if memory := peak_mebibytes(one, where):
                    found = findings.measure(
                        "Peak memory of a step", *labels, "MiB", [memory], memory_peer
                    )
                    memory_peer = memory_peer or found
                del one
                if where.type == "cuda":
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    start(main)
