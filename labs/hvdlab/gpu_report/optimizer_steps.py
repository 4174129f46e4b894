"""Step time of LARS, LAMB and NovoGrad, compared with torch, timm and pytorch-optimizer."""

import math

import torch

from hvdlab.bench.optimizers import NETWORKS, optimizers
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, milliseconds, name

TITLES = {"resnet50": "ResNet-50", "transformer": "transformer of BERT-base's size"}
SMALL = ((64, 3, 7, 7), (64,), (64, 64), (10, 64), (10,))  # on the processor


def main(findings: Findings) -> None:
    where = device()
    gpu = where.type == "cuda"
    chosen = (
        {title: NETWORKS[key]() for key, title in TITLES.items()}
        if gpu
        else {"five tensors": list(SMALL)}
    )
    for title, shapes in chosen.items():
        weights = sum(math.prod(shape) for shape in shapes) / 1e6
        table = f"{title}: {len(shapes)} tensors, {weights:.3g} M weights"
        params = [torch.nn.Parameter(0.05 * torch.randn(shape, device=where)) for shape in shapes]
        for p in params:
            p.grad = 1e-3 * torch.randn_like(p)
        peers = {}
        for label, (algorithm, make) in entrants(where).items():
            try:
                optimizer = make(params)
                times = milliseconds(optimizer.step, where, 0.6)
            except Exception as error:  # a peer that this device or its memory does not suit
                findings.fact(
                    label, f"cannot be measured: {type(error).__name__}: {error}"[:200], table=table
                )
                continue
            peer = peers.get("SGD" if algorithm in ("LARS", "SGD") else "AdamW")
            found = findings.measure(table, label, name(where), "float32", "ms", times, peer)
            peers.setdefault(algorithm, found)
            del optimizer


def entrants(where: torch.device) -> dict:
    """Label -> (algorithm, function of parameters); torch's fused ones first, as peers of all others."""
    found = optimizers()
    if (
        where.type == "cuda"
    ):  # there ours are always the lists of tensors: see hvdlab.torch.optimizers
        doubled = [
            label for label in found if label.startswith("hvdlab") and label.endswith("foreach")
        ]
        for label in doubled:
            del found[label]
    return dict(sorted(found.items(), key=lambda item: not item[0].endswith("fused")))


if __name__ == "__main__":
    start(main)
