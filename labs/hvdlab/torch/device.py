"""Which device a rank trains on, and how its gradients are sent to the other ranks.

    hvd.init()
    mine = rank_device(hvd)     # a GPU of its own, a GPU that ranks share, or the processor
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)       # while the weights are in host memory
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    model.to(mine.device)       # before the optimizer is wrapped: a move discards Horovod's hooks
    state = optimizer.state_dict()
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=mine.compression
    )
    optimizer.load_state_dict(state)    # Horovod 0.28.1 returns an optimizer without a state

NCCL sends gradients from GPU to GPU, but refuses two ranks on one GPU. A Horovod that was built without
NCCL must not get a tensor on a GPU at all: version 0.28.1 copies it without waiting for the copy, and
then waits for ever. In both cases `mine.compression` sends the gradients through host memory, over MPI.
The result is the same, but the copies take time.

If ranks see slices of GPUs (MIG), call `rank_device` before any function that looks for a GPU, also before
`torch.cuda.is_available()`, because CUDA reads only once which slice it may use.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hvdlab.system.gpu_assignment import assign, obstacle
from hvdlab.system.hardware import visible_gpus


@dataclass(frozen=True)
class RankDevice:
    """The device of this rank.

    Attributes:
        device: device for tensors; it is also the current CUDA device.
        ranks: number of ranks that use this GPU, this one included; 0 on the processor.
        direct: whether the ranks send tensors from GPU to GPU, by NCCL. It is the same on all ranks.
    """

    device: torch.device
    ranks: int
    direct: bool

    @property
    def compression(self) -> type:
        """Class to pass as `compression` to `hvd.DistributedOptimizer` on this device."""
        on_processor = self.device.type == "cpu"
        return InHorovodsLayout if self.direct or on_processor else ThroughHost

    @property
    def backend(self) -> str:
        """Name to pass as `backend` to `torch.distributed.init_process_group` on this device."""
        return "nccl" if self.direct else "gloo"


class InHorovodsLayout:
    """Compression that sends gradients in a form that Horovod accepts, from the device where they are.

    Horovod 0.28.1 refuses tensors that are not contiguous, such as gradients of `channels_last` weights
    ("Tensor is required to be contiguous"), and does not support bfloat16. Such gradients are sent as
    contiguous copies, and bfloat16 as float32, which represents all of its numbers. The order of the
    numbers is then the same on all ranks, even if a rank had no gradient and sends zeros in the default
    layout. Other gradients are sent unchanged.
    """

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, tuple[torch.dtype, torch.memory_format]]:
        """Return the tensor to send, and what `decompress` needs: the original dtype and layout."""
        channels_last = tensor.dim() == 4 and not tensor.is_contiguous()
        layout = torch.channels_last if channels_last else torch.contiguous_format
        sent = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return sent.contiguous(), (tensor.dtype, layout)

    @staticmethod
    def decompress(tensor: Tensor, context: tuple[torch.dtype, torch.memory_format]) -> Tensor:
        """Return a received tensor in its original dtype and layout.

        Args:
            tensor: the average.
            context: the second result of `compress`.
        """
        dtype, layout = context
        return tensor.to(dtype).contiguous(memory_format=layout)


class ThroughHost:
    """Compression that copies gradients to host memory and the averages back to the GPU.

    It is for ranks that share a GPU, and for a Horovod without NCCL. The copy is complete before Horovod
    gets the tensor. The average is the same as with NCCL except for the order of additions.
    """

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, tuple[Any, torch.device]]:
        """Return a copy of the tensor in host memory, and what `decompress` needs."""
        sent, context = InHorovodsLayout.compress(tensor)
        return sent.to("cpu", copy=True), (context, tensor.device)

    @staticmethod
    def decompress(tensor: Tensor, context: tuple[Any, torch.device]) -> Tensor:
        """Return a received tensor on its original device, in its original dtype and layout.

        Args:
            tensor: the average, in host memory.
            context: the second result of `compress`.
        """
        context, device = context
        return InHorovodsLayout.decompress(tensor.to(device), context)


def rank_device(hvd: ModuleType) -> RankDevice:
    """Choose the device of this rank, and make it the current CUDA device.

    All ranks must call it after `hvd.init()` and before any function uses a GPU, because the ranks compare
    the GPUs that they see.

    Args:
        hvd: `horovod.torch`, or `hvdlab.keras.horovod` if Keras runs on PyTorch.
    """
    gather = hvd.allgather_object if hvd.size() > 1 else lambda value: [value]
    return choose(hvd.rank(), gather, int(hvd.nccl_built()))


def choose(
    rank: int, gather: Callable[[list], list[list]], nccl: int, share: bool = True
) -> RankDevice:
    """Choose the device of a rank of any communication library; `rank_device` does so for Horovod.

    Args:
        rank: rank of this process.
        gather: collective operation that returns the values of all ranks, in order of rank.
        nccl: version of NCCL that the library was built with, such as 22907; 0 without NCCL.
        share: whether ranks may share a GPU and exchange through host memory (default). If not, all ranks
            use the processor unless NCCL connects the GPUs of all ranks.
    """
    visible = gather(gpus_of_torch())
    mine, why = assign(visible)[rank], obstacle(visible, nccl)
    on_gpu = share or not why
    if rank == 0 and why and len(visible) > 1 and any(visible):
        consequence = "exchange gradients through host memory" if share else "use the processor"
        print(f"{why}, so the ranks {consequence}.", file=sys.stderr, flush=True)
    if mine.index is None or not on_gpu:
        return RankDevice(torch.device("cpu"), 0, False)
    name = visible[rank][mine.index]
    slices = name.startswith("MIG-")
    if slices:
        os.environ["CUDA_VISIBLE_DEVICES"] = name
    device = torch.device("cuda", 0 if slices else mine.index)
    torch.cuda.set_device(device)
    return RankDevice(device, mine.ranks, not why)


def gpus_of_torch() -> list[str]:
    """Return the UUIDs of the GPUs that PyTorch sees in this process, in CUDA's order."""
    if not torch.backends.cuda.is_built():
        return []
    uuids = visible_gpus()
    if any(name.startswith("MIG-") for name in uuids):
        return uuids  # CUDA must not start before a slice is chosen
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(count)]
