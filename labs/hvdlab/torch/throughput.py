"""Training speed of a network of the assessment in PyTorch, on this process, now."""

import itertools
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from hvdlab.data import Batches
from hvdlab.torch.device_batches import DeviceBatches
from hvdlab.torch.models import assessment_network, autocast

WARM_UP_STEPS = 5


def measure(
    batches: Batches,
    meet: Callable[[], object],
    *,
    seconds: float | None = None,
    steps: int | None = None,
    distribute: Callable = lambda model, optimizer: (model, optimizer),
    device: torch.device | str = "cpu",
    autocast: Callable = autocast,
    network: str | None = None,
) -> tuple[float, float]:
    """Train for some seconds or steps; return when the first steps were done, and images/s after.

    Args:
        batches: what to train on, augmentation included.
        meet: waits for the other processes: before the measurement, so that all measure at the
            same time, and after it, so that nobody leaves its core to those still measuring.
        seconds, steps: length of the measurement, one of the two. Processes that exchange
            gradients need `steps`: the same number on each.
        distribute: (model on the device, optimizer) -> (model, optimizer) that exchange gradients.
        device: where to train.
        autocast: device -> context of the forward pass.
        network: its name, see `hvdlab.torch.models.assessment_network`. Default: the given one.

    Returns:
        (CLOCK_MONOTONIC seconds, images/s of this process)
    """
    model = assessment_network(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    model, optimizer = distribute(model.to(device), optimizer)
    on_device = DeviceBatches(batches, device)
    endless = (batch for epoch in itertools.count() for batch in on_device.epoch(epoch))

    def step() -> None:
        images, labels = next(endless)
        with autocast(device):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def now() -> float:
        """Seconds, when the device has done all that was asked of it: a step itself does not wait."""
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        return time.monotonic()

    for _ in range(WARM_UP_STEPS):
        step()
    ready = now()
    meet()
    began, done = time.monotonic(), 0
    while done < steps if steps else time.monotonic() - began < seconds:
        step()
        done += 1
    rate = done * batches.batch_size / (now() - began)
    meet()
    return ready, rate
