"""Measure forward and backward pass of ghost batch norm, compared with torch.nn.BatchNorm2d."""

import itertools

import torch

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, dtype_name, milliseconds, name
from hvdlab.torch.normalization import GhostBatchNorm2d

GHOST_SIZE = 32  # images
FORMATS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def main(findings: Findings) -> None:
    """Measure both layers for each shape, type and memory format."""
    where = device()
    gpu = where.type == "cuda"
    shapes = ((256, 64, 32, 32), (512, 256, 8, 8)) if gpu else ((64, 8, 4, 4),)
    dtypes = (torch.float32, torch.bfloat16) if gpu else (torch.float32,)
    for shape, dtype, form in itertools.product(shapes, dtypes, FORMATS):
        x = torch.randn(shape, device=where, dtype=dtype)
        x = x.to(memory_format=FORMATS[form]).requires_grad_()
        dy = torch.randn_like(x)
        measure = findings.rows("", name(where), dtype_name(dtype), "ms")
        layers = {
            "BatchNorm2d": torch.nn.BatchNorm2d(shape[1]),
            f"GhostBatchNorm2d({GHOST_SIZE})": GhostBatchNorm2d(shape[1], GHOST_SIZE),
        }
        for label, layer in layers.items():
            layer.to(where)

            def step(
                layer: torch.nn.Module = layer, x: torch.Tensor = x, dy: torch.Tensor = dy
            ) -> None:
                layer(x).backward(dy)
                x.grad = None

            what = f"{label}, {'x'.join(map(str, shape))}, {form}"
            measure(what, milliseconds(step, where, 0.6))


if __name__ == "__main__":
    start(main)
