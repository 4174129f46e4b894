"""Measure step times of LARS, LAMB and NovoGrad, compared with torch, timm and pytorch-optimizer."""

import math
from collections.abc import Callable

import torch

from hvdlab.bench.optimizers import optimizers
from hvdlab.bench.weight_shapes import NETWORKS
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, milliseconds, name

TITLES = {"resnet50": "ResNet-50", "transformer": "transformer of BERT-base's size"}
SMALL = ((64, 3, 7, 7), (64,), (64, 64), (10, 64), (10,))  # shapes on the processor


def main(findings: Findings) -> None:
    """Measure all optimizers on each network; the peer is torch's fused SGD or AdamW."""
    where = device()
    chosen = {"five tensors": list(SMALL)}
    if where.type == "cuda":
        chosen = {title: NETWORKS[key]() for key, title in TITLES.items()}
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
            except (
                Exception
            ) as error:  # a peer that does not support the device, or needs more memory
                reason = f"cannot be measured: {type(error).__name__}: {error}"
                findings.fact(label, reason[:200], table=table)
                continue
            peer = peers.get("SGD" if algorithm in ("LARS", "SGD") else "AdamW")
            found = findings.measure(table, label, name(where), "float32", "ms", times, peer)
            peers.setdefault(algorithm, found)
            del optimizer


def entrants(where: torch.device) -> dict[str, tuple[str, Callable]]:
    """Return the optimizers to measure: label -> (algorithm, function of the parameters).

    Torch's fused optimizers come first, because they are the peers of all others.
    """
    gpu = where.type == "cuda"
    found = {
        label: entrant
        for label, entrant in optimizers().items()
        if not (gpu and label.startswith("hvdlab") and label.endswith("foreach"))
    }
    return dict(sorted(found.items(), key=lambda item: not item[0].endswith("fused")))


if __name__ == "__main__":
    start(main)
