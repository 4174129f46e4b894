"""Compare the weights of ranks and of runs, and what the ranks read."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from hvdgrade.evidence.weights_file import MAX_EXAMPLES
from hvdlab.record import is_statistic

EXACT = 1e-6  # a relative distance below this is too small to be float32 rounding
# The smallest scale to which differences of biases and of batch-norm weights are compared. These arrays may
# start with zeros only, so their median may be 0.
LEAST_SCALE = 1e-3


def difference(one: dict, other: dict) -> tuple[float, str]:
    """Return the largest relative difference between the trained weights of two ranks, and its array's name.

    The difference is relative to the weight itself or to the median absolute weight of its array, whichever
    is larger. It is not relative to the largest weight, because nothing may depend on that weight.

    Args:
        one: weights of the first rank, name -> array.
        other: weights of the second rank, with the same names and shapes.
    """
    largest, where = 0.0, ""
    for name, weights in one.items():
        if not is_statistic(name):
            mine = weights.astype(np.float64)
            least = LEAST_SCALE if mine.ndim == 1 else 1e-30
            scale = np.maximum(np.abs(mine), max(float(np.median(np.abs(mine))), least))
            part = float((np.abs(mine - other[name]) / scale).max())
            if part > largest:
                largest, where = part, name
    return largest, where


def reading(read: list[np.ndarray], examples: int) -> dict:
    """Return statistics of the examples that the ranks read in one epoch.

    Args:
        read: the indices that each rank read, one array of shape (n,) per rank.

    Returns:
        A dict: `read`, the number of examples of each rank; `outside`, the number of examples of all ranks
        that are not in the training set, such as test images appended to it; `coverage`, the fraction of the
        training set that the ranks read together; `shared`, the largest fraction of one rank's examples that
        another rank also read; `same_order`, the largest fraction of positions at which two ranks read the
        same example.
    """
    valid = [r[(r >= 0) & (r < examples)] for r in read]
    marks = np.zeros((len(valid), examples), bool)
    for mark, indices in zip(marks, valid, strict=True):
        mark[indices] = True
    shared = same = 0.0
    for i in range(len(valid)):
        for j in range(i):
            both = np.count_nonzero(marks[i] & marks[j])
            shared = max(shared, both / max(1, min(marks[i].sum(), marks[j].sum())))
            length = min(len(valid[i]), len(valid[j]))
            equal = np.count_nonzero(valid[i][:length] == valid[j][:length])
            same = max(same, equal / max(1, length))
    return {
        "read": [len(r) for r in read],
        "outside": sum(map(len, read)) - sum(map(len, valid)),
        "coverage": float(marks.any(axis=0).mean()),
        "shared": float(shared),
        "same_order": float(same),
    }


def recorded(path: Path, epoch: int, name: str) -> int | None:
    """Return the number that a rank's record claims for `epoch`, or None if it is missing or not plausible.

    Args:
        path: the record of the rank, with one JSON object per line.
        epoch: number of the epoch.
        name: which number to return, for example "steps".
    """
    try:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            entry = json.loads(line)
            if isinstance(entry, dict) and entry.get("epoch") == epoch:
                number = entry.get(name)
                return number if type(number) is int and 0 < number <= MAX_EXAMPLES else None
    except (OSError, ValueError, RecursionError):
        pass
    return None


def equal_replicas(snapshots: dict[int, list[dict]]) -> dict:
    """Compare the weights of all ranks after each step that was recorded.

    Args:
        snapshots: number of steps -> weights of each rank.

    Returns:
        The fields `replicas`, `differing_step` and `differing` of `ProbeEvidence`.
    """
    worst, step, names = 0.0, None, {}
    for number, ranks in sorted(snapshots.items()):
        for name in ranks[0]:
            apart = max(difference({name: ranks[0][name]}, other)[0] for other in ranks)
            worst = max(worst, apart)
            if apart > EXACT:
                step = number if step is None else step
                names[name] = None
    return {"replicas": worst, "differing_step": step, "differing": list(names)}


def updates_per_step(weights: list[dict]) -> float | None:
    """Return how often the weights changed per step, given the weights after consecutive steps.

    Args:
        weights: of one rank after a step, after the next step, and so on. The result is None for fewer
            than five, because gradients may be accumulated over four steps.
    """
    if len(weights) < 5:
        return None
    changes = [
        any(not np.array_equal(one[name], other[name]) for name in one if not is_statistic(name))
        for one, other in pairwise(weights)
    ]
    return sum(changes) / len(changes)


def distance(apart: dict[int, list[dict]], together: dict[int, list[dict]]) -> float:
    """Return the distance between the two runs of the probe, relative to the first run's own movement.

    The unit is the distance that rank 0 of the first run moves from the first snapshot that both runs have
    to the second, which is as many steps. So a small learning rate makes both distances small. Only the
    weights of the last layer count, because their gradient is a smooth function of all weights before it. In
    contrast, a float16 gradient can change which of two nearly equal values a max pooling takes, and then
    the weights before the pooling change abruptly.

    The rank with the largest distance counts, after the first snapshot. If that distance is too small to be
    rounding (at most EXACT), the second snapshot counts too: the weights may not have moved before the first.

    Args:
        apart: number of steps -> weights of each rank, of the first run; at least two snapshots.
        together: the same of the second run.

    Returns:
        The relative distance; infinity if the first run did not move between the two snapshots.
    """

    def norm(one: dict, other: dict) -> float:
        names = ("linear.weight", "linear.bias")
        return sum(float(((one[n].astype(np.float64) - other[n]) ** 2).sum()) for n in names) ** 0.5

    first = min(apart)
    second = 2 * first if 2 * first in apart else max(apart)
    if not (way := norm(apart[second][0], apart[first][0])):
        return float("inf")
    gaps = [
        max(norm(*pair) for pair in zip(apart[step], together[step], strict=True)) / way
        for step in (first, second)
        if step in together
    ]
    return gaps[0] if gaps[0] > EXACT else max(gaps)
