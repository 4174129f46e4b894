"""Memory of a training step, measured: what a rank holds all the time, and the most it needs at once.

held(model, optimizer)              # {"parameters": ..., "gradients": ..., "optimizer": ...}
with peak("cpu") as most:
    train_step()
print(most.bytes)
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler says when it starts and stops


def held(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, int]:
    """Bytes that this rank holds between two steps. A tensor that is sharded counts its own part.

    Returns:
        "parameters", "gradients" (0 before the first backward pass and after `zero_grad`) and
        "optimizer" (its state; 0 before the first step). Memory that several tensors share is
        counted once.
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


def _bytes(tensors):
    storages = {}
    for tensor in tensors:
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = own.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


@dataclass
class Peak:
    """`bytes`: the most that was allocated at once beyond what there was at the start."""

    bytes: int = 0


@contextmanager
def peak(device: torch.device | str = "cpu") -> Iterator[Peak]:
    """Measure the most memory that PyTorch allocates at once within the block.

    On a CPU the profiler records each allocation, which makes the block slower: do not time it. On
    CUDA it is `torch.cuda.max_memory_allocated`.
    """
    found = Peak()
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield found
        found.bytes = torch.cuda.max_memory_allocated(device) - before
        return
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield found
    events = profiler.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    found.bytes = max(accumulate((size for _, size in sorted(changes)), initial=0))
