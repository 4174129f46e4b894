"""Assign each worker of a batch its own cores and GPUs.

Gradings measure time, so they are comparable only if no two of them use the same core.
"""

from itertools import chain
from math import ceil

from hvdlab.system.hardware import physical_cores, usable_cores, visible_gpus


def worker_slots(
    ranks: int, workers: int | None, oversubscribe: bool, on_gpus: bool = True
) -> list[tuple]:
    """Return the cores and GPUs of each worker.

    Args:
        ranks: number of ranks of each submission.
        workers: number of workers. Default: as many as can have one core per rank (and one GPU per
            rank, if there are GPUs).
        oversubscribe: allow more workers than that, which then share cores or GPUs.
        on_gpus: whether the submissions use GPUs. If not, GPUs are not divided among the workers.

    Returns:
        For each worker its cores and the UUIDs of its GPUs or MIG slices (None if there are none).

    Raises:
        ValueError: there are more workers than cores or GPUs allow.
    """
    cores, gpus = physical_cores(), visible_gpus() if on_gpus else []
    each = ceil(ranks / min(map(len, cores)))  # whole cores per worker
    disjoint = len(cores) // each
    # A container may see many more cores than its quota lets it use.
    most = max(1, min(disjoint, usable_cores() // ranks))
    # One worker may have fewer GPUs than ranks. Its ranks then share GPUs.
    most_on_gpus = max(1, len(gpus) // ranks) if gpus else most
    workers = workers if workers is not None else min(most, most_on_gpus)
    if workers > most and not oversubscribe:
        raise ValueError(
            f"--workers {workers} with {ranks} ranks each need {workers * ranks} hardware threads, and no "
            f"two may share a core; usable are {usable_cores()} on {len(cores)} cores: at most {most}, "
            "or --oversubscribe (which makes each slower)."
        )
    if workers > most_on_gpus and not oversubscribe:
        raise ValueError(
            f"--workers {workers} with {ranks} ranks each need {workers * ranks} GPUs, and there are "
            f"{len(gpus)}: at most {most_on_gpus}, or --oversubscribe; where PyTorch and TensorFlow use the "
            "CPU, set CUDA_VISIBLE_DEVICES to nothing."
        )
    if workers <= disjoint:
        parts = [[*chain(*part)] for part in shares(cores, workers, each)]
    else:
        parts = shares([*chain(*cores)], workers, ranks)
    return [
        (part, shares(gpus, workers, 1)[worker] if gpus else None)
        for worker, part in enumerate(parts)
    ]


def shares(things: list, workers: int, least: int) -> list[list]:
    """Divide `things` into equal parts, one per worker.

    The parts are disjoint if there are at least `least` things per worker. Otherwise the parts
    overlap, and the things are assigned in turns.
    """
    size = max(len(things) // workers, min(least, len(things)))
    return [
        [things[(worker * size + i) % len(things)] for i in range(size)]
        for worker in range(workers)
    ]
