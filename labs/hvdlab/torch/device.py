"""Which device a rank trains on, and how its gradients reach the other ranks.

    hvd.init()
    mine = rank_device(hvd)     # a GPU of its own, a GPU that ranks share, or the processor
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)     # while the weights are in host memory
    model.to(mine.device)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=mine.compression
    )

NCCL sends gradients from GPU to GPU, and refuses two ranks on one GPU. A Horovod that was built without
NCCL must not be given a tensor on a GPU at all: version 0.28.1 copies it without waiting for the copy, and
then waits for ever. In both situations `mine.compression` sends the gradients through host memory, over
MPI. The result is the same, and the time that the copies take is the price.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hvdlab.gpu_assignment import assign, each_has_its_own
from hvdlab.hardware import visible_gpus


@dataclass(frozen=True)
class RankDevice:
    """The device of this rank.

    Attributes:
        device: for tensors; the current CUDA device is set to it.
        ranks: number of ranks that use this GPU, this one included; 0 on the processor.
        direct: whether the ranks send tensors from GPU to GPU, by NCCL.
    """

    device: torch.device
    ranks: int
    direct: bool

    @property
    def compression(self) -> type:
        """What `hvd.DistributedOptimizer(compression=...)` needs on this device."""
        on_processor = self.device.type == "cpu"
        return InHorovodsLayout if self.direct or on_processor else ThroughHost

    @property
    def backend(self) -> str:
        """What `torch.distributed.init_process_group` needs on this device."""
        return "nccl" if self.direct else "gloo"


class InHorovodsLayout:
    """Gradients as Horovod accepts them, on the device where they are.

    Horovod 0.28.1 refuses tensors that are not contiguous, such as gradients of `channels_last` weights
    ("Tensor is required to be contiguous"), and has no bfloat16. A channels-last tensor is contiguous when
    it is looked at as (batch, height, width, channels), without a copy. float32 holds all numbers of
    bfloat16. Other gradients are sent as they are.
    """

    @staticmethod
    def compress(tensor):
        dtype, channels_last = tensor.dtype, False
        if not tensor.is_contiguous():
            channels_last = tensor.dim() == 4 and tensor.permute(0, 2, 3, 1).is_contiguous()
            tensor = tensor.permute(0, 2, 3, 1) if channels_last else tensor.contiguous()
        tensor = tensor.float() if dtype == torch.bfloat16 else tensor
        return tensor, (dtype, channels_last)

    @staticmethod
    def decompress(tensor, context):
        dtype, channels_last = context
        tensor = tensor.permute(0, 3, 1, 2) if channels_last else tensor
        return tensor.to(dtype)


class ThroughHost:
    """Gradients copied to host memory, averaged there, and copied back to the GPU.

    For ranks that share a GPU, and for a Horovod without NCCL. The copy is complete before Horovod sees
    the tensor. The average is the same as over NCCL except for the order of additions.
    """

    @staticmethod
    def compress(tensor):
        sent, context = InHorovodsLayout.compress(tensor)
        return sent.to("cpu", copy=True), (context, tensor.device)

    @staticmethod
    def decompress(tensor, context):
        context, device = context
        return InHorovodsLayout.decompress(tensor, context).to(device)


def rank_device(hvd) -> RankDevice:
    """Choose the device of this rank, and make it the current CUDA device.

    All ranks must call it, after `hvd.init()` and before anything uses a GPU: they compare what they see.

    Args:
        hvd: `horovod.torch` or `hvdlab.keras.horovod`.
    """
    nccl = bool(hvd.nccl_built())
    gather = (lambda value: hvd.allgather_object(value)) if hvd.size() > 1 else (lambda one: [one])
    return choose(hvd.rank(), gather, nccl)


def choose(
    rank: int, gather: Callable[[tuple], list[tuple]], nccl: bool, share: bool = True
) -> RankDevice:
    """Choose the device of a rank of any library; `rank_device` does so for Horovod's.

    Args:
        rank: of this process.
        gather: collective that returns the values of all ranks, in order of rank.
        nccl: whether the library can send tensors from GPU to GPU.
        share: whether ranks may share a GPU and exchange through host memory. If not, all ranks use the
            processor unless each rank of the run has a GPU of its own.
    """
    everyone = gather(tuple(_gpus_that_torch_uses()))
    visible = [list(gpus) for gpus in everyone]
    mine, own = assign(visible)[rank], each_has_its_own(visible)
    direct = own and nccl
    if mine.index is None or not (own or share):
        if rank == 0 and any(visible):
            seen = len({gpu for gpus in visible for gpu in gpus})
            why = "ranks of this script cannot share a GPU" if not share else "this rank sees none"
            _say(f"{seen} GPUs for {len(visible)} ranks: {why}, so they use the processor.")
        return RankDevice(torch.device("cpu"), 0, False)
    name = visible[rank][mine.index]
    if name.startswith("MIG-"):  # of several slices CUDA shows a process the first only
        os.environ["CUDA_VISIBLE_DEVICES"] = name
        mine = type(mine)(0, mine.ranks)
    device = torch.device("cuda", mine.index)
    torch.cuda.set_device(device)
    if rank == 0 and not direct and len(visible) > 1:
        why = "this build has no NCCL" if own else f"{mine.ranks} ranks share a GPU"
        why = "MIG slices cannot reach each other" if name.startswith("MIG-") and mine.ranks == 1 else why
        _say(f"{why}: gradients are exchanged through host memory.")
    return RankDevice(device, mine.ranks, direct)


def _gpus_that_torch_uses() -> list[str]:
    """UUIDs of the GPUs that this process sees, in CUDA's order."""
    if torch.version.cuda is None:
        return []
    found = visible_gpus()
    if any(name.startswith("MIG-") for name in found):
        return found  # CUDA must not start before a slice is chosen
    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    if len(found) == count:
        return found
    return [str(torch.cuda.get_device_properties(i).uuid) for i in range(count)]  # no nvidia-smi


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
