"""Run AxoNN without a GPU: its calls of CUDA and NCCL are replaced by calls of the CPU and Gloo.

AxoNN 0.2.0 is written for GPUs: it sets the CUDA device, makes its process groups with NCCL, and allocates
on "cuda". Its own code runs on any device and does not change. Four functions of PyTorch change:

    torch.cuda.set_device      does nothing
    torch.cuda.current_device  returns "cpu"
    torch.distributed.new_group(ranks, backend="nccl")   makes a Gloo group
    torch.empty(..., device="cuda") and the like         allocate on the CPU

That is enough for its layers in expert mode. The other mode gathers a tensor without dimensions, which Gloo
refuses ("invalid tensor size at index 0 (expected (), got (1))"). If the ranks use GPUs nothing changes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class _OnCPU(TorchFunctionMode):
    """Mode in which every function of PyTorch that is called with device="cuda" gets device="cpu"."""

    def __torch_function__(
        self,
        function: Callable,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")) == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


@contextmanager
def axonn_on_cpu() -> Iterator[None]:
    """Make AxoNN work on CPUs within the block. If NCCL connects the ranks, change nothing.

    Initialise `torch.distributed` before, and pass `gpus_per_node` to `axonn.init`.
    """
    if dist.get_backend() == "nccl":
        yield
        return
    new_group = dist.new_group
    with (
        mock.patch("torch.cuda.set_device", lambda device: None),
        mock.patch("torch.cuda.current_device", lambda: "cpu"),
        mock.patch("torch.distributed.new_group", lambda ranks, backend: new_group(ranks)),
        _OnCPU(),
    ):
        yield
