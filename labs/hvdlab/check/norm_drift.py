"""The distance between the batch norm statistics of two ranks: see `drift`."""

import math

from hvdlab.check.run_events import Run
from hvdlab.trace import records


def drift(run: Run) -> tuple[int, int, float]:
    """Return the largest distance between the running means of two ranks.

    Only the last statistics of each optimizer count, because those of a few batches may differ by chance.

    Returns:
        (step, layer from 1, distance in standard deviations); (0, 0, 0.0) without statistics.
    """
    worst = 0, 0, 0.0
    for number in run.optimizers():
        noted = [
            (step, statistics)
            for step, events in enumerate(run.steps(number), 1)
            if all(statistics := [event.statistics for event in events])
        ]
        for step, statistics in noted[-1:]:
            for first, second in run.peers:
                pairs = zip(statistics[first], statistics[second], strict=False)
                for layer, (a, b) in enumerate(pairs, 1):
                    worst = max(worst, (step, layer, _distance(a, b)), key=lambda w: w[2])
    return worst


def _distance(one: records.NormStatistics, other: records.NormStatistics) -> float:
    """Return the root mean square over channels of the distance of two running means.

    Returns:
        The distance in standard deviations.
    """
    squares = []
    for a, b, v, w in zip(one.mean, other.mean, one.variance, other.variance, strict=False):
        # They started as mean 0 and variance 1. `filled` is the fraction that no longer comes from that
        # start. A network that was trained before started with other values, which its variance shows.
        first, second = a / one.filled, b / other.filled
        variances = [
            own if (own := (x - 1 + part) / part) > 1e-6 else max(1e-6, x)
            for x, part in ((v, one.filled), (w, other.filled))
        ]
        squares.append((first - second) ** 2 / (sum(variances) / 2))
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0
