"""Compute the coordinates of the charts on the pages, in units of the drawing; the templates draw them."""

import math
from collections import Counter

from hvdgrade.output.text import is_finite
from hvdgrade.result_document import EpochPart, TargetsPart


def accuracy_chart(timeline: list[EpochPart], budget: object, targets: TargetsPart) -> dict | None:
    """Return the coordinates of the plot of accuracy against time, or None if there is nothing to plot.

    Args:
        budget: the time budget in seconds. It is not drawn if it is not a positive number.
        targets: train_accuracy and heldout_accuracy, 0..1, as far as they are known.
    """
    seconds = [e["seconds"] for e in timeline if is_finite(e.get("seconds"))]
    if not seconds:
        return None
    budget = budget if is_finite(budget) and budget > 0 else None
    end = 1.06 * max(seconds + [budget or 0, 1e-3])
    left, right, top, bottom = 44, 470, 34, 254

    def x(value: float) -> float:
        return round(left + (right - left) * min(max(value / end, 0), 1), 1)

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * min(max(value, 0), 1), 1)

    def curve(css: str, key: str, name: str, place: int) -> dict:
        entries = [e for e in timeline if is_finite(e.get("seconds")) and is_finite(e.get(key))]
        points = [(x(e["seconds"]), y(e[key])) for e in entries]
        target = targets.get(key) if is_finite(targets.get(key)) else None
        return {
            "css": css,
            "points": points,
            "line": " ".join(f"{a},{b}" for a, b in points),
            "target": y(target) if target is not None else None,
            "key": place,  # of the legend
            "text": name + (f", target {target:.2f}" if target is not None else ""),
        }

    step = nice_step(end)
    return {
        "width": 480,
        "height": 296,
        "left": left,
        "right": right,
        "top": top,
        "bottom": bottom,
        "budget": x(budget) if budget else None,
        "y_ticks": [{"at": y(v), "text": f"{v:.2f}"} for v in (0, 0.25, 0.5, 0.75, 1)],
        "x_ticks": [
            {"at": x(i * step), "text": f"{i * step:g}"} for i in range(int(end / step) + 1)
        ],
        "curves": [
            curve("train", "train_accuracy", "training images", left - 38),
            curve("heldout", "heldout_accuracy", "held-out images", left + 198),
        ],
    }


def nice_step(end: float, most: int = 6) -> float:
    """Return the smallest of 1, 2, 5, 10, ... (and their tenths) of which at most `most` fit into `end`."""
    power = 10.0 ** math.floor(math.log10(end / most))
    return next(f * power for f in (1, 2, 5, 10) if end / (f * power) <= most)


def bar_chart(
    values: list[float],
    *,
    width: float,
    first: float,
    last: float,
    unit: str,
    limit: float | None = None,
) -> dict:
    """Return the coordinates of a histogram.

    Args:
        values: the numbers to count, at least one.
        unit: format of an edge, for example "{:.0f}".
        limit: value that is marked by a line. Default: none.
    """
    count = round((last - first) / width) + 1
    counts = Counter(
        min(max(math.floor((value - first) / width + 1e-9), 0), count - 1) for value in values
    )
    left, right, bottom, top = 14, 466, 176, 34
    each = (right - left) / count
    tallest = max(counts.values())
    bars = []
    for i in range(count):
        height = (bottom - top) * counts[i] / tallest
        edge = unit.format(first + i * width) + ("+" if limit and i == count - 1 else "")
        bars.append(
            {
                "edge": round(left + i * each, 1),
                "x": round(left + i * each + 1.5, 1),
                "y": round(bottom - height, 1),
                "width": round(each - 3, 1),
                "middle": round(left + (i + 0.5) * each, 1),
                "count": counts[i],
                "text": edge if i % 2 == 0 or i == count - 1 else "",
            }
        )
    at = left + (limit - first) / width * each if limit else None
    return {
        "width": 480,
        "height": 204,
        "left": left,
        "right": right,
        "bottom": bottom,
        "bars": bars,
        "limit": at and round(at, 1),
    }
