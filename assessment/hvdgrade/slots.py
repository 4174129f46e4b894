"""Which cores and GPUs each worker of a batch has for itself.

Gradings measure time. They are comparable only if no two of them use the same core.
"""

from itertools import chain
from math import ceil

from hvdlab.system.hardware import physical_cores, usable_cores, visible_gpus


def worker_slots(
    ranks: int, workers: int | None, oversubscribe: bool, on_gpus: bool = True
) -> list[tuple]:
    """For each worker its cores and the UUIDs of its GPUs or MIG slices (None where there are none).

    Args:
        ranks: of each submission.
        workers: how many; the default is as many as have a core (and a GPU, if there are some) a rank.
        oversubscribe: allow more than that; they share then.
        on_gpus: False: GPUs are not used, and so not divided.

    Raises:
        ValueError: more workers than there are cores or GPUs for.
    """
    cores, gpus = physical_cores(), visible_gpus() if on_gpus else []
    each = ceil(ranks / min(map(len, cores)))  # whole cores a worker
    disjoint = len(cores) // each
    # A container may see many more cores than its quota lets it use.
    most = max(1, min(disjoint, usable_cores() // ranks))
    # One worker may have fewer GPUs than ranks; they then share GPUs.
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
    """Equal parts for each worker, disjoint if there is enough for `least` each, else in turns."""
    size = max(len(things) // workers, min(least, len(things)))
    return [
        [things[(worker * size + i) % len(things)] for i in range(size)]
        for worker in range(workers)
    ]
