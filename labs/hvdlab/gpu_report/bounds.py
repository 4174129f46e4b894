"""Measure upper limits of the speed of a step: torch.compile, and a CUDA graph that replays all kernels."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, milliseconds, name
from hvdlab.gpu_report.networks import Setting, batch, settings, step
from hvdlab.torch.models import assessment_network


def main(findings: Findings) -> None:
    """Measure eager steps, and on a GPU graphs and compiled steps; report each one."""
    where = device()
    gpu = where.type == "cuda"
    measured = []
    for network, size in settings(gpu)[::2] if gpu else settings(gpu)[:1]:
        setting = Setting(network, size, "bfloat16", channels_last=gpu)
        measure = findings.rows("", name(where), setting.precision, "images/s", more_is_better=True)
        measure(f"{setting}, eager", speed(setting, step(setting, where), where))
        measured.append((setting, measure))
        if gpu:
            graph = captured(step(setting, where))
            measure(f"{setting}, CUDA graph of the step", speed(setting, graph, where))
    if not gpu:
        findings.fact("torch.compile and CUDA graphs", "not measured on the processor")
        return
    for setting, measure in measured:  # last, because it takes long and the time limit may end it
        measure(f"{setting}, torch.compile", speed(setting, compiled(setting, where), where))


def speed(setting: Setting, one: Callable[[], object], where: torch.device) -> list[float]:
    """Return samples of the images/s of a step."""
    return [1000 * setting.batch / ms for ms in milliseconds(one, where, 1.0)]


def captured(one: Callable[[], object]) -> Callable[[], None]:
    """Return a function that replays a step from a CUDA graph.

    Autocast must not cache the casts of weights in the graph, because a replay would use old weights.

    Args:
        one: makes a step.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    torch.set_autocast_cache_enabled(False)
    with torch.cuda.stream(side):
        for _ in range(5):
            one()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()
    return graph.replay


def compiled(setting: Setting, where: torch.device) -> Callable[[], None]:
    """Return a step whose forward and backward pass are compiled."""
    torch.set_autocast_cache_enabled(True)
    model = assessment_network(setting.network).to(where, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, fused=True
    )
    images, labels = batch(setting.batch, where)

    @torch.compile
    def loss_of(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(where.type, torch.bfloat16):
            return F.cross_entropy(model(images), labels)

    def one() -> None:
        loss = loss_of(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return one


if __name__ == "__main__":
    start(main)
