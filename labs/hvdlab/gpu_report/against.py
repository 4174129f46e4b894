"""Compare the measurements of this report with those of an older one."""

from collections.abc import Sequence

from hvdlab.gpu_report.results import Comparison, Measurement, PartResult


def compare(parts: Sequence[PartResult], before: Sequence[PartResult]) -> list[Comparison]:
    """Return a comparison for each measurement that both reports have, in the order of `parts`.

    A measurement has lost if it is worse than before and the ranges (smallest to largest sample) of the two
    do not overlap. A single sample is also a range, so a reader must look at n.
    """
    old = {(part.name, one.key): one for part in before for one in part.measurements}
    found = []
    for part in parts:
        for now in part.measurements:
            then = old.get((part.name, now.key))
            if then is not None and then.median:
                words = now.table, now.what, now.device, now.dtype
                what = ", ".join(word for word in words if word)
                ratio, lost = now.median / then.median, _lost(now, then)
                found.append(Comparison(part.name, what, now.unit, now, then, ratio, lost))
    return found


def _lost(now: Measurement, then: Measurement) -> bool:
    return now.high < then.low if now.more_is_better else now.low > then.high
