"""AxoNN without a GPU: what it asks of CUDA and NCCL is answered by the CPU and Gloo.

AxoNN 0.2.0 is written for GPUs: it sets the CUDA device, makes its process groups with NCCL, and
allocates on "cuda". Its code itself runs anywhere, and stays as it is; four answers of PyTorch change:

    torch.cuda.set_device      does nothing
    torch.cuda.current_device  is "cpu"
    torch.distributed.new_group(ranks, backend="nccl")   makes a Gloo group
    torch.empty(..., device="cuda"), and its like        allocate on the CPU

That is enough for its layers in expert mode. The other mode gathers a tensor without dimensions, which Gloo
refuses ("invalid tensor size at index 0 (expected (), got (1))"). Where the ranks use GPUs nothing changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class _OnCPU(TorchFunctionMode):
    """Every function of PyTorch that is called with device="cuda" gets device="cpu"."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")) == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


@contextmanager
def axonn_on_cpu() -> Iterator[None]:
    """Within the block AxoNN can be initialised and used on CPUs; does nothing where NCCL connects the ranks.

    `torch.distributed` must be initialised before, and `axonn.init` be told `gpus_per_node`.
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
