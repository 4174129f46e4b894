"""Exercises of lab 17: fractions, unions of intervals, self time. The five cases are in lab17_cases.py."""

import pandas as pd

from hvdlab.course.chrome_trace import Span, steps
from hvdlab.exercises import call
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.lab17_cases import (  # noqa: F401
    ANSWERS,
    NAMES,
    Intervals,
    check_diagnosis,
    length,
    measures,
)


def fraction_of_step(spans, name):
    inside = sum(span.duration for span in spans if span.name == name)
    whole = sum(step.duration for step in steps(spans))
    return inside / whole


def mean_of_fractions(spans, name):
    inside = [span.duration for span in spans if span.name == name] or [0, 0]
    return sum(i / s.duration for i, s in zip(inside, steps(spans), strict=True)) / 2


# fmt: off
TWO_STEPS = [
    Span(name, "annotation", 7, start, duration) for name, start, duration in (
        ("step", 0, 50), ("read batch", 0, 30), ("forward", 30, 20),
        ("step", 100, 110), ("read batch", 100, 10), ("forward", 110, 60))
]
check_fraction_of_step = FunctionExercise(
    fraction_of_step,
    [
        Case((TWO_STEPS, name), reason, f"fraction_of_step(spans, {name!r})", expected)
        for name, expected, reason in (
            ("read batch", 0.25, "Two steps take 50 and 110 ms, and reading takes 30 and 10 ms."),
            ("forward", 0.5, "Two steps take 50 and 110 ms, and the forward passes take 20 and 60 ms."),
            ("update", 0, "There is no span with this name."))
    ],
    {
        "That is the mean of the fractions of the steps: a short step would count as much as a long one. "
        "Divide the sum of the spans by the sum of the steps.": mean_of_fractions,
        "The time between two steps does not count: divide by the sum of the durations of the steps.":
            ("sum(step.duration for step in steps(spans))", "steps(spans)[-1].end - steps(spans)[0].start"),
        "That is a time in milliseconds: divide it by the time of all steps.": (" / whole", ""),
        "That is the time per step in milliseconds: divide the sum of the spans by the sum of the steps.":
            ("inside / whole", "inside / len(steps(spans))"),
        "That is a percentage: return a fraction between 0 and 1.": ("inside /", "100 * inside /"),
        "Count the time of the spans, not how many there are.":
            ("sum(span.duration for", "sum(1 for", "inside / whole", "inside / len(steps(spans))"),
        "Divide by the time of the steps only: the other spans lie inside the steps, so their time would "
        "count twice.": ("steps(spans)", "spans"),
        "That is the fraction of the first step: take all steps.":
            ("whole = ", "spans = spans[:3]; inside = sum(s.duration for s in spans if s.name == name)"
             "\n    whole = "),
    },
    passed="40 of 160 ms are reading and 80 of 160 ms are the forward pass.",
)
# fmt: on


def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def merge_with_neighbour(intervals):
    """Compare each interval with the one before it in the argument."""
    merged, before = [], None
    for start, end in sorted(intervals):
        if before is not None and start <= before:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
        before = end
    return merged


# fmt: off
check_merge = FunctionExercise(
    merge,
    [
        Case(([(1, 3), (2, 5), (7, 8)],), "Intervals that overlap become one.", expected=[(1, 5), (7, 8)]),
        Case(([(7, 8), (2, 5), (1, 3)],), "The intervals need not be in order: sort them.",
             expected=[(1, 5), (7, 8)]),
        Case(([(0, 10), (2, 3)],), "An interval inside another one must not shorten it: take the larger of "
             "the two ends.", expected=[(0, 10)]),
        Case(([(0, 10), (2, 3), (5, 6)],), "Compare with the last interval of the result.",
             expected=[(0, 10)]),
        Case(([(0, 1), (1, 2)],), "An interval that begins where another one ends continues it.",
             expected=[(0, 2)]),
        Case(([],), "No intervals have an empty union.", expected=[]),
    ],
    {
        "The intervals need not be in order: sort them.": ("sorted(intervals)", "intervals"),
        "An interval inside another one must not shorten it: take the larger of the two ends.":
            ("max(merged[-1][1], end)", "end"),
        "An interval that begins where another one ends continues it: use <=.": ("start <=", "start <"),
        "Intervals that overlap become one, and yours are only sorted.": ("start <= merged[-1][1]", "False"),
        "Compare with the last interval of the result, not with the one before in the argument.":
            merge_with_neighbour,
        "The first interval is missing: it begins the result.":
            ("merged.append((start, end))", "merged.append((start, end))\n    merged = merged[1:]"),
        "Two intervals become one only if they overlap: keep the gap between them.":
            ("start <= merged[-1][1]", "True"),
    },
    passed="six small unions, with overlapping, nested, touching and no intervals.",
    shape=None, meaning="in pairs (start, end)",
)
# fmt: on


def exposed(communication, compute):
    together = length(communication + compute)
    return together - length(compute)


def total(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)


# fmt: off
REST = "together - length(compute)"
check_exposed = FunctionExercise(
    exposed,
    [
        Case(([(10, 30), (40, 50)], [(0, 20), (45, 60)]), "Computation covers 10 to 20 and 45 to 50.",
             expected=15),
        Case(([(10, 30), (20, 40)], [(0, 10)]), "The all-reduces last from 10 to 40, and computation covers "
             "none of this time.", expected=30),
        Case(([(10, 20)], [(0, 30), (5, 12)]), "Computation covers all of it.", expected=0),
        Case(([(10, 20)], []), "Without computation all communication is exposed.", expected=10),
        Case(([], [(0, 10)]), "Without communication nothing is exposed.", expected=0),
        Case(([(0, 10)], [(2, 4), (3, 6)]), "Computation covers 2 to 6.", expected=6),
    ],
    {
        "That is all communication: subtract what computation covers.":
            [(REST, "length(communication)"), (REST, "total(communication)")],
        "Overlapping all-reduces count twice: take the union first.":
            (REST, f"total(communication) - length(communication) + {REST}"),
        "That is the time in which anything happens: subtract the time of the computation.":
            (" - length(compute)", ""),
        "That is the communication that is hidden. Return the rest of it.":
            (REST, "length(communication) + length(compute) - together"),
        "That is the computation that no communication covers: the two are swapped.":
            ("- length(compute)", "- length(communication)"),
        "Subtract the union of the computation, not the sum of its durations.":
            ("- length(compute)", "- total(compute)"),
        "Subtracting the two lengths is right only if all computation is inside the communication.":
            [("together = length(communication + compute)", "together = length(communication)"),
             (REST, "max(0, length(communication) - length(compute))")],
        "Subtracting the two sums is right only if nothing overlaps and all computation is inside the "
        "communication.": [(REST, "total(communication) - total(compute)"),
                           (REST, "max(0, total(communication) - total(compute))")],
    },
    passed="six small cases, among them overlapping all-reduces and no computation at all.",
    meaning="of milliseconds",
)
# fmt: on


def self_time(span, spans):
    inside = [(each.start, each.end) for each in spans if span.contains(each)]
    return span.duration - length(inside)


# fmt: off
SPANS = [
    Span(name, "communication" if ":" in name else "operation", track, start, duration)
    for name, track, start, duration in (
        ("aten::linear", 1, 0, 10), ("aten::addmm", 1, 2, 6), ("aten::copy_", 1, 3, 2), ("aten::t", 1, 8, 1),
        ("gloo:all_reduce", 2, 1, 8), ("aten::gelu", 1, 10, 5))
]
INSIDE = "each is not span and span.start <= each.start and each.end <= span.end"
check_self_time = FunctionExercise(
    self_time,
    [
        Case((SPANS[number], SPANS), reason, f"the self time of {SPANS[number].name}", expected)
        for number, expected, reason in (
            (0, 3, "aten::addmm and aten::t are inside it, and take 6 and 1 of 10 ms."),
            (1, 4, "aten::copy_ is inside it, and takes 2 of 6 ms."),
            (5, 5, "A span without others inside it has its whole duration as self time."))
    ],
    {
        "The span aten::copy_ is inside aten::addmm, so its 2 ms are subtracted twice: take the union of the "
        "spans inside.": ("length(inside)", "total(inside)"),
        "A span of another track is not inside this one: use span.contains.":
            [("span.contains(each)", INSIDE),
             ("span.contains(each)", INSIDE, "length(inside)", "total(inside)")],
        "That is the total time: subtract the spans inside.": (" - length(inside)", ""),
        "That is the time of the spans inside: subtract it from the duration.": ("span.duration - ", ""),
        "A span is not inside itself: leave it out.":
            ("span.contains(each)", "span.start <= each.start < span.end and each.track == span.track"),
        "A span without others inside it has its whole duration as self time.":
            ("span.duration - length(inside)", "span.duration - length(inside) if inside else 0"),
    },
    passed="3 of 10 ms, 4 of 6 ms, and 5 of 5 ms.", meaning="of milliseconds",
)
# fmt: on


def lateness(table):
    starts = table.pivot(index=["tensor", "step"], columns="phase", values="start")
    late = starts["ready 1"] - starts["ready 0"]
    return late.median()


# fmt: off
READY = {("a", 0): (1, 3), ("b", 0): (2, 2.5), ("a", 1): (10, 19), ("b", 1): (12, 11)}
TABLE = pd.DataFrame(
    [(*key, phase, start) for key, (first, second) in READY.items() for phase, start in (
        ("ready 0", first), ("ready 1", second), ("negotiate", min(first, second)))],
    columns=["tensor", "step", "phase", "start"],
)
check_lateness = FunctionExercise(
    lateness,
    [Case((TABLE,), "The four differences are 2, 0.5, 9 and -1 ms.", "lateness(table)", 1.25)],
    {
        "That is how much later rank 0 is. Subtract the times of rank 0 from those of rank 1.":
            ('["ready 1"] - starts["ready 0"]', '["ready 0"] - starts["ready 1"]'),
        "That is the mean, which one slow step can change a lot. Take the median.": ("median", "mean"),
        "That is the difference of the two medians. Subtract first, and take the median of the differences.":
            ("late.median()", 'starts["ready 1"].median() - starts["ready 0"].median()'),
        "That is the median without signs, but a rank that is earlier counts with a minus.":
            ("late.median()", "late.abs().median()"),
    },
    passed="the median of 2, 0.5, 9 and -1 ms is 1.25 ms.", meaning="of milliseconds", observe=call,
)
# fmt: on
