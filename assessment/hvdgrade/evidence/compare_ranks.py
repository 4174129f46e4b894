"""Compare the weights of ranks and of runs, and what the ranks read."""

import json
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
        examples: size of the training set.

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


def distance(apart: list[list[dict]], together: list[list[dict]]) -> float:
    """Return the distance between the two runs of the probe, relative to the first run's own movement.

    The unit is the distance that rank 0 of the first run moves in its second epoch. Only the weights of the
    last layer count, because their gradient is a smooth function of all weights before it. In contrast, a
    float16 gradient can change which of two nearly equal values a max pooling takes, and then the weights
    before the pooling change abruptly.

    The rank with the largest distance counts, after the first epoch. If that distance is too small to be
    rounding (at most EXACT), the second epoch counts too. It reveals a script that averages gradients only at
    the beginning. The second epoch does not always count, because rounding errors grow: for a network of the
    submission's own, in float32, they had grown from 0.000002 .. 0.02 after the first epoch to 0.01 .. 0.15
    after the second.

    Args:
        apart: weights of the first run, `apart[epoch][rank]` with name -> array; at least two epochs.
        together: weights of the second run, in the same form.

    Returns:
        The relative distance; infinity if the first run did not move in its second epoch.
    """

    def norm(one: dict, other: dict) -> float:
        names = ("linear.weight", "linear.bias")
        return sum(float(((one[n].astype(np.float64) - other[n]) ** 2).sum()) for n in names) ** 0.5

    first, second = apart[:2]
    if not (way := norm(second[0], first[0])):
        return float("inf")
    epochs = zip(apart, together, strict=False)
    gaps = [max(norm(*pair) for pair in zip(*epoch, strict=True)) / way for epoch in epochs]
    return gaps[0] if gaps[0] > EXACT else max(gaps)
