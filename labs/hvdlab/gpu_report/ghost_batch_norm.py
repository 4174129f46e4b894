"""Ghost batch norm compared with torch.nn.BatchNorm2d, forward and backward pass."""

import torch

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, milliseconds, name
from hvdlab.torch.normalization import GhostBatchNorm2d

GHOST_SIZE = 32


def main(findings: Findings) -> None:
    where = device()
    gpu = where.type == "cuda"
    for shape in ((256, 64, 32, 32), (512, 256, 8, 8)) if gpu else ((64, 8, 4, 4),):
        for dtype in (torch.float32, torch.bfloat16) if gpu else (torch.float32,):
            for channels_last in (False, True):
                form = torch.channels_last if channels_last else torch.contiguous_format
                x = (
                    torch.randn(shape, device=where, dtype=dtype)
                    .to(memory_format=form)
                    .requires_grad_()
                )
                dy = torch.randn_like(x)
                what = f"{'x'.join(map(str, shape))}, {'channels-last' if channels_last else 'contiguous'}"
                peer = None
                layers = {
                    "BatchNorm2d": torch.nn.BatchNorm2d(shape[1]),
                    f"GhostBatchNorm2d({GHOST_SIZE})": GhostBatchNorm2d(shape[1], GHOST_SIZE),
                }
                for label, layer in layers.items():
                    layer.to(where)

                    def step(layer=layer, x=x, dy=dy):
                        layer(x).backward(dy)
                        x.grad = None

                    times = milliseconds(step, where, 0.6)
                    kind = str(dtype)[6:]
                    found = findings.measure(
                        "", f"{label}, {what}", name(where), kind, "ms", times, peer
                    )
                    peer = peer or found


if __name__ == "__main__":
    start(main)
