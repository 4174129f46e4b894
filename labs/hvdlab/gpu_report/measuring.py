"""Measure on a device: which device, the time of a step, and the memory that it needs."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from hvdlab.system.hardware import cpu_facts

SAMPLES = 7


def device() -> torch.device:
    """Return the GPU, or the processor where PyTorch can use no GPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def name(where: torch.device) -> str:
    """Return the name of a device, for the column "device"."""
    if where.type == "cuda":
        return torch.cuda.get_device_name(where)
    return f"processor ({cpu_facts().get('model name', platform.machine())})"


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type without "torch.", such as "float32"."""
    return str(dtype).removeprefix("torch.")


def wait_for(where: torch.device) -> None:
    """Wait until a GPU has completed all work; on the processor there is nothing to wait for."""
    if where.type == "cuda":
        torch.cuda.synchronize()


def milliseconds(
    step: Callable[[], object], where: torch.device, seconds: float = 1.0
) -> list[float]:
    """Return milliseconds per call of `step`: seven samples, after a warm-up of a third of `seconds`.

    A sample is a block of calls between two CUDA events, so that the processor may run ahead of the GPU as
    it does in training. On the processor a sample is a block between two readings of the clock, and only
    three short samples are taken.

    Args:
        where: the device on which `step` works.
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


def _block(step: Callable[[], object], calls: int, gpu: bool) -> float:
    """Return milliseconds per call of a block of calls."""
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
    """Return milliseconds of single calls, measured with the clock of the processor.

    A time includes the work of the GPU. There are at least three calls.

    Args:
        where: the device on which `step` works.
    """
    until = time.perf_counter() + (seconds if where.type == "cuda" else 0.05)
    times: list[float] = []
    for _ in range(3):
        step()
    while time.perf_counter() < until or len(times) < 3:
        wait_for(where)
        start = time.perf_counter()
        step()
        wait_for(where)
        times.append(1000 * (time.perf_counter() - start))
    return times


def peak_mebibytes(step: Callable[[], object], where: torch.device) -> float | None:
    """Return the largest memory of all tensors during a step in MiB; None on the processor."""
    if where.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(where)
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(where) / 2**20


def set_precision(precision: str) -> None:
    """Allow TF32 in matrix products and convolutions, except for "float32".

    Args:
        precision: "float32", "TF32" or "bfloat16".
    """
    tf32 = precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def spread(values: Sequence[float]) -> list[float]:
    """Return the sorted values without the smallest and the largest twentieth.

    Other programs disturb single calls.
    """
    ordered = sorted(values)
    cut = len(ordered) // 20
    return ordered[cut : len(ordered) - cut] or [statistics.median(ordered)]
