"""Measure the training speed of a network of the assessment in PyTorch on this process."""

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
    """Train for some seconds or steps; return when the first steps were done, and images/s after them.

    Args:
        batches: what to train on, augmentation included.
        meet: function that waits for the other processes: before the measurement, so that all processes
            measure at the same time, and after it, so that no process leaves its core to those that
            still measure.
        seconds: length of the measurement in seconds. Give this or `steps`.
        steps: length of the measurement in steps. Processes that exchange gradients need it, because all
            of them must make the same number of steps.
        distribute: function (model on the device, optimizer) -> (model, optimizer) that exchange
            gradients. Default: no exchange.
        device: where to train. Default "cpu".
        autocast: function device -> context of the forward pass. Default:
            `hvdlab.torch.models.autocast`.
        network: its name, see `hvdlab.torch.models.assessment_network`, which also has the default.

    Returns:
        (time.monotonic() seconds, images/s of this process).
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
        """Return time.monotonic() seconds after waiting for the device, because a step does not wait."""
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
