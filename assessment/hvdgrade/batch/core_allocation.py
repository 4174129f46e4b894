"""Assign each worker of a batch its own cores and GPUs.

Gradings measure time, so they are comparable only if no two of them use the same core.
"""

from itertools import chain
from math import ceil
from typing import TypeVar

from hvdgrade.batch.arguments import Refused
from hvdlab.system.hardware import physical_cores, usable_cores, visible_gpus

Thing = TypeVar("Thing")


def worker_slots(
    ranks: int, workers: int | None, oversubscribe: bool, on_gpus: bool = True
) -> list[tuple[list[int], list[str] | None]]:
    """Return the cores and GPUs of each worker.

    Args:
        ranks: number of ranks of each submission.
        workers: number of workers. None: as many as can have one core per rank (and one GPU per rank, if
            there are GPUs).
        on_gpus: whether the submissions use GPUs. If not, GPUs are not divided among the workers.
            Default: True.

    Returns:
        For each worker its cores and the UUIDs of its GPUs or MIG slices (None if there are none).

    Raises:
        Refused: there are more workers than cores or GPUs allow.
    """
    cores, gpus = physical_cores(), visible_gpus() if on_gpus else []
    cores_per_worker = ceil(ranks / min(map(len, cores)))  # whole physical cores
    disjoint = len(cores) // cores_per_worker
    # A container may see many more cores than its quota lets it use.
    most = max(1, min(disjoint, usable_cores() // ranks))
    # One worker may have fewer GPUs than ranks. Its ranks then share GPUs.
    most_on_gpus = max(1, len(gpus) // ranks) if gpus else most
    workers = workers if workers is not None else min(most, most_on_gpus)
    if workers > most and not oversubscribe:
        raise Refused(
            f"--workers {workers} with {ranks} ranks per submission need {workers * ranks} hardware "
            "threads, and no two submissions may share a core. This machine has "
            f"{usable_cores()} usable threads on {len(cores)} cores: choose at most {most} workers, or "
            "pass --oversubscribe, which makes every grading slower."
        )
    if workers > most_on_gpus and not oversubscribe:
        raise Refused(
            f"--workers {workers} with {ranks} ranks per submission need {workers * ranks} GPUs, but there "
            f"are {len(gpus)}: choose at most {most_on_gpus} workers, or pass --oversubscribe. If PyTorch "
            "and TensorFlow use the CPU here, set CUDA_VISIBLE_DEVICES to an empty value."
        )
    if workers <= disjoint:
        groups = [[*chain(*group)] for group in partition(cores, workers, cores_per_worker)]
    else:
        groups = partition([*chain(*cores)], workers, ranks)
    gpu_groups = partition(gpus, workers, 1) if gpus else [None] * workers
    return list(zip(groups, gpu_groups, strict=True))


def partition(things: list[Thing], workers: int, least: int) -> list[list[Thing]]:
    """Divide a list into groups of equal size, one per worker.

    Args:
        workers: number of groups.
        least: size that each group needs. If there are fewer things than that per worker, the groups
            overlap, and the things are assigned in turns.
    """
    size = max(len(things) // workers, min(least, len(things)))
    return [
        [things[(worker * size + i) % len(things)] for i in range(size)]
        for worker in range(workers)
    ]
