"""Measure the memory of training: what a rank holds between steps, and the peak of a step.

For example:

    held(model, optimizer)              # {"parameters": ..., "gradients": ..., "optimizer": ...}
    with peak("cpu") as most:
        train_step()
    print(most.bytes)
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

os.environ.setdefault(
    "KINETO_LOG_LEVEL", "99"
)  # else the profiler reports when it starts and stops


def held(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, int]:
    """Return the bytes that this rank holds between two steps.

    Of a sharded tensor only this rank's shard counts. Memory that several tensors share counts once.

    Args:
        model: the model, sharded or not.
        optimizer: its optimizer. Default: none.

    Returns:
        bytes of "parameters", of "gradients" (0 before the first backward pass and after `zero_grad`) and
        of "optimizer" (its state; 0 before the first step).
    """
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = [] if optimizer is None else optimizer.state.values()
    tensors = [value for state in states for value in state.values() if torch.is_tensor(value)]
    return {
        "parameters": _bytes(parameters),
        "gradients": _bytes(gradients),
        "optimizer": _bytes(tensors),
    }


def _bytes(tensors: Iterable[Tensor]) -> int:
    storages = {}
    for tensor in tensors:
        # Of a DTensor the shard. The import of that class takes a second.
        own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = own.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


@dataclass
class Peak:
    """Result of `peak`.

    Attributes:
        bytes: the most that was allocated at once, in addition to what was allocated at the start.
    """

    bytes: int = 0


@contextmanager
def peak(device: torch.device | str = "cpu") -> Iterator[Peak]:
    """Measure the most memory that PyTorch allocates at once within the block.

    On a CPU the profiler records each allocation, which makes the block slower, so do not time it. On
    CUDA the measurement is `torch.cuda.max_memory_allocated`.

    Args:
        device: the device whose memory is measured. Default "cpu".

    Yields:
        a `Peak`, whose `bytes` are known after the block.
    """
    most = Peak()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield most
        most.bytes = torch.cuda.max_memory_allocated(device) - before
        return
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield most
    events = profiler.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    most.bytes = max(accumulate((size for _, size in sorted(changes)), initial=0))
