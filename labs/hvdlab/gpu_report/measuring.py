"""How the parts measure on a device: which one, how long a step takes, and how much memory it needs."""

import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

SAMPLES = 7


def device() -> torch.device:
    """The GPU, or the processor where PyTorch can use none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def name(where: torch.device) -> str:
    """For the column "device"."""
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return f"processor ({models[0] if models else platform.machine()})"


def milliseconds(
    step: Callable[[], object], where: torch.device, seconds: float = 1.0
) -> list[float]:
    """Milliseconds per call of `step`: seven samples, after a warm-up of a third of `seconds`.

    A sample is a block of calls between two CUDA events, so that the processor may run ahead of the GPU as
    it does in training; on the processor it is a block between two readings of the clock. Without a GPU only
    three short samples are taken.
    """
    gpu = where.type == "cuda"
    seconds, samples = (seconds, SAMPLES) if gpu else (min(seconds, 0.06), 3)
    step()
    one = max(_block(step, 1, gpu), 1e-4)
    until = time.perf_counter() + seconds / 3
    while time.perf_counter() < until:
        one = _block(step, max(1, int(5 / one)), gpu)  # about 5 ms
    calls = max(1, int(1000 * seconds / samples / max(one, 1e-4)))
    return [_block(step, calls, gpu) for _ in range(samples)]


def _block(step, calls: int, gpu: bool) -> float:
    """Milliseconds per call."""
    if gpu:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        for _ in range(calls):
            step()
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / calls
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return 1000 * (time.perf_counter() - start) / calls


def wall_milliseconds(
    step: Callable[[], object], where: torch.device, seconds: float = 1.0
) -> list[float]:
    """Milliseconds of single calls by the clock of the processor, the GPU's work included."""
    gpu = where.type == "cuda"
    until = time.perf_counter() + (seconds if gpu else 0.05)
    times: list[float] = []
    for _ in range(3):
        step()
    while time.perf_counter() < until or len(times) < 3:
        _wait(gpu)
        start = time.perf_counter()
        step()
        _wait(gpu)
        times.append(1000 * (time.perf_counter() - start))
    return times


def _wait(gpu: bool) -> None:
    if gpu:
        torch.cuda.synchronize()


def peak_mebibytes(step: Callable[[], object], where: torch.device) -> float | None:
    """The most memory that tensors hold during a step; None on the processor."""
    if where.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(where)
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(where) / 2**20


def set_precision(precision: str) -> None:
    """Allow TF32 in matrix products and convolutions, or not: "float32", "TF32" or "bfloat16"."""
    tf32 = precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def spread(values: list[float]) -> list[float]:
    """Without the slowest and fastest twentieth: single calls are disturbed by what else runs."""
    ordered = sorted(values)
    cut = len(ordered) // 20
    return ordered[cut : len(ordered) - cut] or [statistics.median(ordered)]
