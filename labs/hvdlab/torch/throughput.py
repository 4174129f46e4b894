"""Training speed of a network of the assessment in PyTorch, on this process, now."""

import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from hvdlab.data import Batches
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
        distribute: (model, optimizer) -> (model, optimizer) that exchange gradients.
        device: where to train.
        autocast: device -> context of the forward pass.
        network: its name, see `hvdlab.torch.models.assessment_network`. Default: the given one.

    Returns:
        (CLOCK_MONOTONIC seconds, images/s of this process)
    """
    model = assessment_network(network).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    model, optimizer = distribute(model, optimizer)

    def step(number: int) -> None:
        images, labels = batches.get(*divmod(number, len(batches)))
        images, labels = torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)
        with autocast(device):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the device

    for number in range(WARM_UP_STEPS):
        step(number)
    ready = time.monotonic()
    meet()
    began, done = time.monotonic(), 0
    while done < steps if steps else time.monotonic() - began < seconds:
        step(WARM_UP_STEPS + done)
        done += 1
    rate = done * batches.batch_size / (time.monotonic() - began)
    meet()
    return ready, rate
