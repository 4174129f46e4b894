"""Which cores and GPUs each worker of a batch has for itself.

Gradings measure time. They are comparable only if no two of them use the same core.
"""

import os
import subprocess
from pathlib import Path


def worker_slots(ranks: int, workers: int | None, oversubscribe: bool) -> list[tuple]:
    """For each worker its cores and its GPUs (None where there are none).

    Args:
        ranks: of each submission.
        workers: how many; the default is as many as have a core (and a GPU, if there are some) a rank.
        oversubscribe: allow more than that; they share then.

    Raises:
        ValueError: more workers than there are cores or GPUs for.
    """
    cores, gpus = physical_order(os.sched_getaffinity(0)), visible_gpus()
    most = max(1, len(cores) // ranks)
    workers = (
        workers if workers is not None else max(1, min(most, len(gpus) // ranks if gpus else most))
    )
    if workers < 1:
        raise ValueError(f"--workers must be at least 1. Received: {workers}")
    if workers > most and not oversubscribe:
        raise ValueError(
            f"--workers {workers} with {ranks} ranks each need {workers * ranks} cores and "
            f"{len(cores)} are usable: at most {most}, or --oversubscribe (which makes each slower)."
        )
    if gpus and workers > len(gpus) and not oversubscribe:
        raise ValueError(f"--workers {workers} would share {len(gpus)} GPUs: at most {len(gpus)}.")
    return [
        (part, shares(gpus, workers, 1)[worker] if gpus else None)
        for worker, part in enumerate(shares(cores, workers, ranks))
    ]


def shares(things: list, workers: int, least: int) -> list[list]:
    """Equal parts for each worker, disjoint if there is enough for `least` each, else in turns."""
    size = max(len(things) // workers, min(least, len(things)))
    return [
        [things[(worker * size + i) % len(things)] for i in range(size)]
        for worker in range(workers)
    ]


def physical_order(cores) -> list[int]:
    """Cores sorted so that hardware threads of one core stand together: no two workers share one."""

    def place(core: int) -> tuple:
        topology = Path(f"/sys/devices/system/cpu/cpu{core}/topology")
        try:
            names = ("physical_package_id", "core_id")
            return (*(int((topology / name).read_text()) for name in names), core)
        except (OSError, ValueError):
            return (0, core, core)

    return sorted(cores, key=place)


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [gpu for gpu in named.split(",") if gpu.strip() not in ("", "-1")]
    try:
        query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        return subprocess.run(
            query, capture_output=True, text=True, timeout=20, check=True
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []
