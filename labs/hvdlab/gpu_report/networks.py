"""Training steps of the networks that the parts measure."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from hvdlab.gpu_report.measuring import set_precision
from hvdlab.torch.models import assessment_network


@dataclass(frozen=True)
class Setting:
    """A network and how it is trained.

    Attributes:
        network: its name, for `hvdlab.torch.models.assessment_network`.
        batch: images per step.
        precision: "float32", "TF32" or "bfloat16" (autocast).
        channels_last: memory format of the weights; the images are in channels-last order in any case.
    """

    network: str
    batch: int
    precision: str = "float32"
    channels_last: bool = False

    def __str__(self) -> str:
        weights = "channels-last" if self.channels_last else "contiguous"
        """Return the setting in words."""
        return f"{TITLES[self.network]}, batch {self.batch}, {weights} weights"


TITLES = {"assessment-net": "AssessmentNet", "wrn-16-10": "WRN-16-10", "wrn-10-1": "WRN-10-1"}


def settings(gpu: bool) -> list[tuple[str, int]]:
    """Return the networks and batch sizes to measure; they are small on the processor."""
    if gpu:
        return [("assessment-net", 128), ("assessment-net", 1024), ("wrn-16-10", 128)]
    return [("assessment-net", 8), ("wrn-10-1", 4)]


def step(
    setting: Setting, where: torch.device, distribute: Callable | None = None
) -> Callable[[], torch.Tensor]:
    """Return a function that makes one training step on random images, and returns the loss.

    Args:
        distribute: (model, optimizer) -> optimizer that exchanges gradients. Default: no exchange.
    """
    set_precision(setting.precision)
    torch.manual_seed(0)
    model = assessment_network(setting.network).to(where)
    if setting.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    if distribute:
        optimizer = distribute(model, optimizer)
    images, labels = batch(setting.batch, where)

    def one() -> torch.Tensor:
        with torch.autocast(where.type, torch.bfloat16, enabled=setting.precision == "bfloat16"):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return one


def batch(size: int, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images (size, 32, 32, 3) and labels (size,): speed does not depend on the content."""
    images = torch.randint(0, 256, (size, 32, 32, 3), dtype=torch.uint8, device=where)
    return images, torch.randint(0, 10, (size,), device=where)
