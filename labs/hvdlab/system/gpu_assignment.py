"""Which GPU each rank uses. Standard library only.

Ranks of one machine may see all of its GPUs (mpirun, torchrun), one each (Slurm's --gpus-per-task, a
Kubernetes pod per rank), slices of a GPU (MIG), or fewer GPUs than there are ranks. One rule covers all
of these, because the GPUs are compared by their UUIDs and not by their numbers: every launcher may give
the number 0 to each rank.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

MANY_RANKS = (
    "NCCL_MULTI_RANK_GPU_ENABLE"  # "1" lets NCCL 2.30 or newer connect ranks that share a GPU
)


@dataclass(frozen=True)
class Assignment:
    """The GPU of one rank.

    Attributes:
        index: of the GPU among those that this rank sees. None: it sees none and uses the processor.
        ranks: number of ranks that use this GPU, this one included; 0 on the processor.
    """

    index: int | None
    ranks: int


def assign(visible: list[list[str]]) -> list[Assignment]:
    """Give each rank the GPU that it sees and that the fewest ranks before it have taken.

    Args:
        visible: for each rank, in order of rank, the UUIDs of the GPUs that it sees, in its own order.

    Returns:
        One assignment per rank. It is the same on all ranks if `visible` is.

    Example:
        >>> assign([["GPU-a", "GPU-b"], ["GPU-a", "GPU-b"]])    # one machine, all GPUs visible
        [Assignment(index=0, ranks=1), Assignment(index=1, ranks=1)]
        >>> assign([["GPU-a"], ["GPU-a"]])                      # one GPU, shared
        [Assignment(index=0, ranks=2), Assignment(index=0, ranks=2)]
    """
    ranks_on: dict[str, int] = {}
    taken: list[str | None] = []
    for gpus in visible:
        choice = min(
            gpus, key=lambda gpu: ranks_on.get(gpu, 0), default=None
        )  # the first of equals
        taken.append(choice)
        if choice is not None:
            ranks_on[choice] = ranks_on.get(choice, 0) + 1
    return [
        Assignment(None, 0) if gpu is None else Assignment(gpus.index(gpu), ranks_on[gpu])
        for gpu, gpus in zip(taken, visible, strict=True)
    ]


def obstacle(visible: list[list[str]], nccl: int) -> str:
    """Return why the ranks cannot send tensors from GPU to GPU with NCCL; "" if they can.

    NCCL needs a whole GPU for every rank. It refuses two ranks on one GPU ("Duplicate GPU detected"),
    unless $NCCL_MULTI_RANK_GPU_ENABLE allows it for NCCL 2.30 or newer, and it does not connect slices
    of GPUs (MIG). A single rank needs no connection.

    Args:
        nccl: version of NCCL that the library was built with, such as 22907; 0 without NCCL.

    Example:
        >>> obstacle([["GPU-a"], ["GPU-a"]], nccl=22907)
        '2 ranks share 1 GPU'
    """
    assignments = assign(visible)
    gpus = {gpu for seen in visible for gpu in seen}
    if without := sum(assignment.index is None for assignment in assignments):
        return f"{without} of {len(visible)} ranks see no GPU"
    if not nccl:
        return "this build has no NCCL"
    if len(visible) == 1 or nccl >= 23000 and os.environ.get(MANY_RANKS) == "1":
        return ""
    if any(assignment.ranks > 1 for assignment in assignments):
        return f"{len(visible)} ranks share {len(gpus)} GPU{'s' * (len(gpus) > 1)}"
    if any(gpu.startswith("MIG-") for gpu in gpus):
        return "NCCL does not connect MIG slices"
    return ""
