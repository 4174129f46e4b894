"""Which fraction of a training step is input, copy, forward pass, backward pass and optimizer."""

import time

import numpy as np
import torch
from torch.nn import functional as F

from hvdlab.gpu_report.data import load
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import (
    device,
    milliseconds,
    name,
    set_precision,
    spread,
    wall_milliseconds,
)
from hvdlab.gpu_report.networks import Setting, settings
from hvdlab.torch.models import assessment_network

STEPS = 60


def main(findings: Findings) -> None:
    where = device()
    gpu = where.type == "cuda"
    from hvdlab.data import Batches

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


def phases(findings: Findings, where, setting: Setting, batches) -> None:
    """The phases of a step, with a wait for the device after each: their sum is more than a real step."""
    gpu = where.type == "cuda"
    wait = torch.cuda.synchronize if gpu else lambda: None
    set_precision(setting.precision)
    model = assessment_network(setting.network).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    names = (
        "input: Batches, augmented",
        "copy to the device",
        "forward pass",
        "backward pass",
        "optimizer",
    )
    times: dict[str, list[float]] = {one: [] for one in names}
    for number in range(5 + (STEPS if gpu else 3)):
        marks = [time.perf_counter()]

        def mark(marks=marks):
            wait()
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
        if number >= 5:
            for one, began, ended in zip(names, marks, marks[1:], strict=False):
                times[one].append(1000 * (ended - began))
    whole = [sum(step) for step in zip(*times.values(), strict=True)]
    what = str(setting).rpartition(",")[0]
    table = "Time of each phase, and its fraction of the sum (ratio)"
    peer = findings.measure(
        table, f"{what}: sum", name(where), setting.precision, "ms", spread(whole)
    )
    for one, values in times.items():
        findings.measure(
            table, f"{what}: {one}", name(where), setting.precision, "ms", spread(values), peer
        )


def copies(findings: Findings, where, images: np.ndarray) -> None:
    """A batch of images onto the device."""
    pageable = torch.from_numpy(images)
    table = "Copy of a batch of images to the device"
    what = f"{len(images)} images, {images.nbytes / 1024:.0f} KiB"
    times = wall_milliseconds(lambda: pageable.to(where, copy=True), where, 0.5)
    peer = findings.measure(
        table, f"{what}, pageable memory", name(where), "uint8", "ms", spread(times)
    )
    if where.type != "cuda":
        return
    pinned = pageable.pin_memory()
    times = wall_milliseconds(lambda: pinned.to(where), where, 0.5)
    findings.measure(
        table, f"{what}, pinned memory", name(where), "uint8", "ms", spread(times), peer
    )
    times = milliseconds(lambda: pinned.to(where, non_blocking=True), where, 0.5)
    findings.measure(
        table,
        f"{what}, pinned memory, non-blocking, back to back",
        name(where),
        "uint8",
        "ms",
        times,
        peer,
    )


def loops(findings: Findings, where, setting: Setting, data) -> None:
    """Images/s of whole loops: one that waits in each step, one that does not, and one without input."""
    from hvdlab.data import Batches

    gpu = where.type == "cuda"
    set_precision(setting.precision)
    model = assessment_network(setting.network).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=gpu)
    size = min(setting.batch, len(data.train_images))
    batches = Batches(data.train_images, data.train_labels, size, augment=True)
    fixed = batches.get(0, 0)
    steps = 100 if gpu else 2

    def loop(images_of, send, wait_each_step: bool) -> list[float]:
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
            if sample:  # the first one warms up
                rates.append(steps * size / (time.perf_counter() - began))
        return rates

    def pageable(array):
        return torch.from_numpy(array).to(where)

    def pinned(array):
        return torch.from_numpy(array).pin_memory().to(where, non_blocking=True)

    on_device = [pageable(array) for array in fixed]
    batch_of = lambda number: batches.get(0, number % len(batches))  # noqa: E731
    table = "Speed of whole training loops"
    what = str(setting).rpartition(",")[0]
    labels = name(where), setting.precision, "images/s"
    peer = findings.measure(
        table, f"{what}: pageable copy, loss.item() in each step", *labels,
        loop(batch_of, pageable, True), more_is_better=True,
    )  # fmt: skip
    if gpu:
        findings.measure(
            table, f"{what}: pinned, non-blocking copy, no loss.item()", *labels,
            loop(batch_of, pinned, False), peer, True,
        )  # fmt: skip
    findings.measure(
        table, f"{what}: the same images, already on the device", *labels,
        loop(lambda number: on_device, lambda tensor: tensor, False), peer, True,
    )  # fmt: skip
    if gpu:
        busy(findings, where, what, lambda: loop(batch_of, pageable, True))


def busy(findings: Findings, where, what: str, run) -> None:
    """The fraction of the time in which kernels run, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    began = time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    wall = time.perf_counter() - began
    kernels = sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6
    what = f"{what}: pageable copy, loss.item() in each step"
    findings.measure(
        "Time in which the GPU works", what, name(where), "bfloat16", "%", [100 * kernels / wall]
    )


if __name__ == "__main__":
    start(main)
