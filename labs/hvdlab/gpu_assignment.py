"""Which GPU each rank uses. Standard library only.

Ranks of one machine may see all of its GPUs (mpirun, torchrun), one each (Slurm's --gpus-per-task, a
Kubernetes pod per rank), slices of a GPU (MIG), or fewer GPUs than there are ranks. One rule covers all
of these, because the GPUs are compared by their UUIDs and not by their numbers: every launcher may give
the number 0 to each rank.
"""

from __future__ import annotations

from dataclasses import dataclass


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
        choice = min(gpus, key=lambda gpu: ranks_on.get(gpu, 0), default=None)  # the first of equals
        taken.append(choice)
        if choice is not None:
            ranks_on[choice] = ranks_on.get(choice, 0) + 1
    return [
        Assignment(None, 0) if gpu is None else Assignment(gpus.index(gpu), ranks_on[gpu])
        for gpu, gpus in zip(taken, visible, strict=True)
    ]


def each_has_its_own(visible: list[list[str]]) -> bool:
    """Whether NCCL can connect the ranks: every rank has a whole GPU that no other rank uses.

    NCCL refuses two ranks on one GPU, and two slices of one GPU (MIG) count as one for it.
    """
    slices = any(gpu.startswith("MIG-") for gpus in visible for gpu in gpus)
    return not slices and all(assignment.ranks == 1 for assignment in assign(visible))
