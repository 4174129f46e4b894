"""The ranks of a part, and how their tensors reach Horovod."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import horovod.torch as hvd
import torch

from hvdlab.torch.device import InHorovodsLayout, RankDevice, rank_device


@dataclass(frozen=True)
class World:
    """This rank among all ranks.

    Attributes:
        rank: of this process.
        size: number of ranks.
        device: of the tensors of this rank.
        compression: how a tensor on `device` reaches Horovod and returns (see `hvdlab.torch.device`).
        label: ranks, device and path of the exchange, for the column "device".
    """

    rank: int
    size: int
    device: torch.device
    compression: type
    label: str

    def through(
        self, operation: Callable, *tensors: torch.Tensor
    ) -> torch.Tensor | list[torch.Tensor]:
        """Call an operation of Horovod, and return its result on the device of this rank.

        Args:
            operation: receives the tensors in the form that Horovod accepts; returns a tensor, or one
                tensor per argument.
        """
        sent, contexts = zip(
            *(self.compression.compress(tensor) for tensor in tensors), strict=True
        )
        got = operation(*sent)
        if isinstance(got, torch.Tensor):
            return self.compression.decompress(got, contexts[0])
        return [self.compression.decompress(*pair) for pair in zip(got, contexts, strict=True)]


def join_world(how: str = "own", process_sets: Sequence[hvd.ProcessSet] | None = None) -> World:
    """Start Horovod, choose the device of this rank, and return this rank."""
    hvd.init(process_sets=process_sets) if process_sets else hvd.init()
    if how == "processor":
        mine = RankDevice(torch.device("cpu"), 0, False)
    else:
        mine = rank_device(hvd)
    compression = InHorovodsLayout if how == "nccl" else mine.compression
    return World(hvd.rank(), hvd.size(), mine.device, compression, _label(mine, how))


def _label(mine: RankDevice, how: str) -> str:
    ranks = "1 rank" if hvd.size() == 1 else f"{hvd.size()} ranks"
    if mine.device.type == "cpu":
        return f"{ranks}, processor, MPI"
    shared = mine.ranks > 1
    where = "one shared GPU" if shared else "GPU" if hvd.size() == 1 else "a GPU each"
    return f"{ranks}, {where}, {'NCCL' if mine.direct or how == 'nccl' else 'host memory and MPI'}"


def exchange_with_one_rank_too() -> None:
    """Let `hvd.DistributedOptimizer` exchange although there is only one rank.

    Horovod 0.28.1 skips the exchange of a single rank (horovod/torch/optimizer.py), unless HOROVOD_ELASTIC,
    the environment variable of its elastic mode, is set. Without it a run on one GPU would not use NCCL at
    all. It is set after `hvd.init()`, so that Horovod itself does not start in elastic mode.
    """
    os.environ["HOROVOD_ELASTIC"] = "1"
