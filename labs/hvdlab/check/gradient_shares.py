"""How the gradient that an optimizer uses is made of the gradients that the ranks have computed.

Both are linear sketches, so the sketch of an average is the average of the sketches. A least squares fit
gives the share of each rank in what an optimizer uses:

    (0.5, 0.5)     the average over two ranks        (1, 1)       the sum
    (1, 0)         the own gradient of rank 0        (0.3, 0.5)   each rank has changed its gradient before
"""

from typing import NamedTuple

import numpy as np

from hvdlab.check.run_events import Run
from hvdlab.trace import records

SAME = 0.05  # relative difference of shares that count as equal
REST = 0.05  # of the gradient that no share explains; float16 leaves 0.001
ALIKE = 0.02  # relative distance of two gradients that cannot be told apart


class Shares(NamedTuple):
    """The shares of the ranks in the gradient of one step on one rank.

    Attributes:
        kind: "mean" (equal shares), "own" (only that of this rank), "uneven", "none" (no gradient), or
            "unknown": other things are in it, or the ranks' gradients cannot be told apart.
        total: the sum of the shares: 1 of an average, the number of ranks of a sum.
        changed: line that changed the gradient after the backward pass, or None.
    """

    kind: str
    total: float
    changed: int | None


def of_step(events: tuple[records.Step, ...]) -> list[Shares] | None:
    """Return the shares in one step, by rank; None if the step was not sketched.

    Args:
        events: steps of all ranks.
    """
    sketches = [event.gradient for event in events]
    if not all(sketches):
        return None
    size = next((len(s.local) for s in sketches if s.local), 0)
    if not size or len(events) > size // 2:
        return [_zero(s) for s in sketches]
    local = np.array([s.local or [0.0] * size for s in sketches]).T
    return [_of_rank(rank, local, sketch) for rank, sketch in enumerate(sketches)]


def _zero(sketch: records.Gradient) -> Shares:
    none = sketch.local is None and not any(sketch.used or ())  # Horovod fills in zeros
    return Shares("none" if none else "unknown", 0.0, sketch.changed)


def _of_rank(rank: int, local: np.ndarray, sketch: records.Gradient) -> Shares:
    if not any(sketch.used or ()) or not np.isfinite(local).all():
        return _zero(sketch)
    used, changed = np.array(sketch.used), sketch.changed
    mean, unknown = local.mean(1), Shares("unknown", 0.0, changed)
    length = np.linalg.norm(used)
    if not np.isfinite(length):
        return unknown
    if len(local.T) > 1 and _alike(local):
        total = float(used @ mean / (mean @ mean))
        rest = np.linalg.norm(used - total * mean) / length
        return unknown if rest > REST else Shares("unknown", total, changed)
    parts = np.linalg.lstsq(local, used, rcond=None)[0]
    if np.linalg.norm(used - local @ parts) > REST * length:
        return unknown
    total, others = float(parts.sum()), np.delete(parts, rank)
    if len(others) and np.abs(others).max() < SAME * abs(parts[rank]):
        return Shares("own", total, changed)
    even = np.ptp(parts) <= SAME * np.abs(parts).max()
    return Shares("mean" if even else "uneven", total, changed)


def _alike(local: np.ndarray) -> bool:
    """Return whether two ranks have computed the same gradient, so that their shares are not known."""
    lengths = np.linalg.norm(local, axis=0)
    for i in range(len(lengths)):
        for j in range(i):
            largest = max(lengths[i], lengths[j])
            if largest == 0 or np.linalg.norm(local[:, i] - local[:, j]) < ALIKE * largest:
                return True
    return False


def of_optimizer(run: Run, number: int | None) -> list[list[Shares]]:
    """Return the shares in the sketched steps of an optimizer: step -> rank -> shares."""
    return [found for events in run.steps(number) if (found := of_step(events))]


def kinds(run: Run, number: int | None) -> set[str]:
    """Return the known kinds of shares in an optimizer's steps."""
    return {share.kind for step in of_optimizer(run, number) for share in step} - {"unknown"}


def averages(run: Run, number: int | None) -> bool:
    """Return whether an optimizer uses gradients of all ranks, or is wrapped where that is unknown."""
    known = kinds(run, number)
    return bool(known & {"mean", "uneven"} if known else wrapped(run, number))


def wrapped(run: Run, number: int | None) -> bool:
    """Return whether an optimizer steps as Horovod's wrapper, or the model or the tape is wrapped."""
    steps = [event for event in run.rank0(records.Step) if event.optimizer == number]
    others = run.rank0(records.Wrap) if run.api() in ("ddp", "tape") else ()
    return any(event.wrapped for event in steps) or any(
        "Optimizer" not in event.what for event in others
    )
