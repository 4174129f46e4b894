"""The largest number of ranks that this machine can start without coming to a standstill.

It uses the standard library only.
"""

from __future__ import annotations  # the doctor reads this with an old Python, too

from hvdlab.system.hardware import available_memory, usable_cores

RANKS_PER_CORE = 8
# Proportional set size of each of 4 ranks with Horovod and a network of one layer: 163 MiB with PyTorch 2.13,
# 325 MiB with Keras and TensorFlow 2.21, 14 MiB with mpi4py alone (n = 1, CPUs, x86-64).
RANK_MEMORY = 256 << 20  # bytes


def most_ranks() -> int:
    """Return the largest number of ranks that this machine can start, at least 2."""
    return max(2, min(RANKS_PER_CORE * usable_cores(), available_memory() // RANK_MEMORY))


def too_many_ranks(ranks: int, option: str = "-np", force: str = "--force") -> str:
    """Return why this machine cannot start so many ranks, in one sentence; "" if it can.

    Args:
        ranks: number of ranks on this machine.
        option: what the user calls the number. Default: "-np".
        force: what starts them all the same. Default: "--force".
    """
    most = most_ranks()
    if ranks <= most:
        return ""
    cores, memory = usable_cores(), available_memory() / 2**30
    return (
        f"{option} {ranks}: this machine has {cores} usable {'core' if cores == 1 else 'cores'} and "
        f"{memory:.1f} GiB of available memory, which is enough for {most} ranks ({RANKS_PER_CORE} per core, "
        f"and {RANK_MEMORY >> 20} MiB for each): choose at most {most}, or add {force}."
    )
