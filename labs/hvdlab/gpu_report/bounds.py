"""What a step could reach at most: torch.compile, and a CUDA graph that replays all of its kernels."""

import torch
from torch.nn import functional as F

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, milliseconds, name
from hvdlab.gpu_report.networks import Setting, batch, settings, step
from hvdlab.torch.models import assessment_network


def main(findings: Findings) -> None:
    where = device()
    gpu = where.type == "cuda"
    chosen = settings(gpu)[::2] if gpu else settings(gpu)[:1]
    eager = {}
    for network, size in chosen:
        setting = Setting(network, size, "bfloat16", channels_last=gpu)
        eager[network] = speed(findings, setting, "eager", step(setting, where), where)
        if gpu:
            graph = captured(step(setting, where))
            speed(findings, setting, "CUDA graph of the step", graph, where, eager[network])
    for network, size in chosen:  # last, because compiling takes long and may be cut off
        setting = Setting(network, size, "bfloat16", channels_last=gpu)
        if gpu:
            speed(
                findings, setting, "torch.compile", compiled(setting, where), where, eager[network]
            )
    if not gpu:
        findings.fact("torch.compile and CUDA graphs", "not measured on the processor")


def speed(findings: Findings, setting: Setting, how: str, one, where, peer=None):
    rates = [1000 * setting.batch / ms for ms in milliseconds(one, where, 1.0)]
    return findings.measure(
        "", f"{setting}, {how}", name(where), setting.precision, "images/s", rates, peer, True
    )


def captured(one):
    """A function that replays a step; autocast must not cache casts of weights in it, or they stay old."""
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


def compiled(setting: Setting, where):
    """A step of which forward and backward pass are compiled."""
    torch.set_autocast_cache_enabled(True)
    model = assessment_network(setting.network).to(where, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=0.9, nesterov=True, fused=True
    )
    images, labels = batch(setting.batch, where)

    @torch.compile
    def loss_of(images, labels):
        with torch.autocast(where.type, torch.bfloat16):
            return F.cross_entropy(model(images), labels)

    def one():
        loss = loss_of(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return one


if __name__ == "__main__":
    start(main)
