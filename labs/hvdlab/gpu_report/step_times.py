"""Measure the phases of a training step: input, copy, forward pass, backward pass and optimizer."""

import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch.nn import functional as F

from hvdlab.data import Batches, Dataset
from hvdlab.gpu_report.data import load
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import (
    device,
    milliseconds,
    name,
    set_precision,
    spread,
    wait_for,
    wall_milliseconds,
)
from hvdlab.gpu_report.networks import Setting, settings
from hvdlab.torch.models import assessment_network

STEPS = 60
WARM_UP_STEPS = 5
PHASES = (
    "input: Batches, augmented",
    "copy to the device",
    "forward pass",
    "backward pass",
    "optimizer",
)


def main(findings: Findings) -> None:
    """Measure phases, copies and whole loops for each network or batch size."""
    where = device()
    gpu = where.type == "cuda"
    data, kind = load()
    findings.fact("images", kind)
    for network, size in settings(gpu):
        setting = Setting(network, size, "bfloat16")
        size = min(size, len(data.train_images))
        batches = Batches(data.train_images, data.train_labels, size, augment=True)
        phases(findings, where, setting, batches)
    for size in sorted({size for _, size in settings(gpu)}):
        copies(findings, where, np.ascontiguousarray(data.train_images[:size]))
        loops(findings, where, Setting("assessment-net", size, "bfloat16"), data)


def phases(findings: Findings, where: torch.device, setting: Setting, batches: Batches) -> None:
    """Measure the phases of a step.

    After each phase the processor waits for the device, so their sum is longer than a real step.
    """
    set_precision(setting.precision)
    model = assessment_network(setting.network).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    times: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for number in range(WARM_UP_STEPS + (STEPS if where.type == "cuda" else 3)):
        marks = [time.perf_counter()]

        def mark(marks: list[float] = marks) -> None:
            wait_for(where)
            marks.append(time.perf_counter())

        images, labels = batches.get(0, number % len(batches))
        mark()
        images, labels = torch.from_numpy(images).to(where), torch.from_numpy(labels).to(where)
        mark()
        with torch.autocast(where.type, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        mark()
        optimizer.zero_grad()
        loss.backward()
        mark()
        optimizer.step()
        mark()
        if number >= WARM_UP_STEPS:
            for phase, began, ended in zip(PHASES, marks, marks[1:], strict=False):
                times[phase].append(1000 * (ended - began))
    whole = [sum(step) for step in zip(*times.values(), strict=True)]
    what = str(setting).rpartition(",")[0]
    table = "Time of each phase, and its fraction of the sum (ratio)"
    measure = findings.rows(table, name(where), setting.precision, "ms")
    for phase, values in ("sum", whole), *times.items():
        measure(f"{what}: {phase}", spread(values))


def copies(findings: Findings, where: torch.device, images: np.ndarray) -> None:
    """Measure the copy of a batch of images to the device, from pageable and from pinned memory."""
    pageable = torch.from_numpy(images)
    measure = findings.rows("Copy of a batch of images to the device", name(where), "uint8", "ms")
    what = f"{len(images)} images, {images.nbytes / 1024:.0f} KiB"
    times = wall_milliseconds(lambda: pageable.to(where, copy=True), where, 0.5)
    measure(f"{what}, pageable memory", spread(times))
    if where.type != "cuda":
        return
    pinned = pageable.pin_memory()
    times = wall_milliseconds(lambda: pinned.to(where), where, 0.5)
    measure(f"{what}, pinned memory", spread(times))
    times = milliseconds(lambda: pinned.to(where, non_blocking=True), where, 0.5)
    measure(f"{what}, pinned memory, non-blocking, back to back", times)


def loops(findings: Findings, where: torch.device, setting: Setting, data: Dataset) -> None:
    """Measure images/s of whole loops: with a wait in each step, without waits, and without input."""
    gpu = where.type == "cuda"
    set_precision(setting.precision)
    model = assessment_network(setting.network).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=gpu)
    size = min(setting.batch, len(data.train_images))
    batches = Batches(data.train_images, data.train_labels, size, augment=True)
    fixed = batches.get(0, 0)
    steps = 100 if gpu else 2

    def loop(
        images_of: Callable[[int], Iterable], send: Callable, wait_each_step: bool
    ) -> list[float]:
        rates = []
        for sample in range(6 if gpu else 4):
            began = time.perf_counter()
            for number in range(steps):
                images, labels = map(send, images_of(number))
                with torch.autocast(where.type, torch.bfloat16):
                    loss = F.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if wait_each_step:
                    loss.item()
            loss.item()
            if sample:  # the first loop warms up
                rates.append(steps * size / (time.perf_counter() - began))
        return rates

    def pageable(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(where)

    def pinned(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).pin_memory().to(where, non_blocking=True)

    on_device = [pageable(array) for array in fixed]
    batch_of = lambda number: batches.get(0, number % len(batches))  # noqa: E731
    table = "Speed of whole training loops"
    what = str(setting).rpartition(",")[0]
    measure = findings.rows(table, name(where), setting.precision, "images/s", more_is_better=True)
    waiting = f"{what}: pageable copy, loss.item() in each step"
    measure(waiting, loop(batch_of, pageable, True))
    if gpu:
        rates = loop(batch_of, pinned, False)
        measure(f"{what}: pinned, non-blocking copy, no loss.item()", rates)
    rates = loop(lambda number: on_device, lambda tensor: tensor, False)
    measure(f"{what}: the same images, already on the device", rates)
    if gpu:
        busy(findings, where, waiting, lambda: loop(batch_of, pageable, True))


def busy(findings: Findings, where: torch.device, what: str, run: Callable[[], object]) -> None:
    """Measure the fraction of the time in which kernels run, with the profiler."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    began = time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    wall = time.perf_counter() - began
    # key_averages() would need half a minute for these hundreds of thousands of events.
    events = profiler.profiler.kineto_results.events()
    on_gpu = (event for event in events if event.device_type() == DeviceType.CUDA)
    kernels = sum(event.duration_ns() for event in on_gpu if not event.is_user_annotation())
    percent = [100 * kernels / 1e9 / wall]
    findings.measure("Time in which the GPU works", what, name(where), "bfloat16", "%", percent)


if __name__ == "__main__":
    start(main)
