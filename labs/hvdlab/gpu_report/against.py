"""Compare the measurements of this report with those of an older one."""

from hvdlab.gpu_report.results import Comparison, Measurement, PartResult


def compare(parts: list[PartResult], before: list[PartResult]) -> list[Comparison]:
    """Each measurement that both reports have, in the order of `parts`.

    It has lost if it is worse than before and the ranges (smallest to largest sample) of the two do not
    overlap. Two single samples are ranges, too: look at n.
    """
    old = {(part.name, one.key): one for part in before for one in part.measurements}
    found = []
    for part in parts:
        for now in part.measurements:
            then = old.get((part.name, now.key))
            if then is not None and then.median:
                what = ", ".join(
                    text for text in (now.table, now.what, now.device, now.dtype) if text
                )
                ratio = now.median / then.median
                found.append(
                    Comparison(part.name, what, now.unit, now, then, ratio, _lost(now, then))
                )
    return found


def _lost(now: Measurement, then: Measurement) -> bool:
    return now.high < then.low if now.more_is_better else now.low > then.high
