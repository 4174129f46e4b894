"""Checks of lab 17: fractions, unions of intervals, self time. The five cases are in lab17_cases.py."""

from collections.abc import Callable

import pandas as pd

from hvdlab.course.chrome_trace import Span
from hvdlab.exercises import NotYet, call, call_unchanged, compare, exercise, number, right
from hvdlab.exercises.lab17_cases import (  # noqa: F401
    ANSWERS,
    NAMES,
    Intervals,
    check_diagnosis,
    length,
    measures,
)


@exercise
def check_fraction_of_step(fraction_of_step: Callable) -> None:
    """Demand the fraction of all steps that the spans with a name take."""
    spans = [
        Span("step", "annotation", 7, 0, 50),
        Span("read batch", "annotation", 7, 0, 30),
        Span("forward", "annotation", 7, 30, 20),
        Span("step", "annotation", 7, 100, 150),
        Span("read batch", "annotation", 7, 100, 10),
        Span("forward", "annotation", 7, 110, 60),
    ]
    for name, right_answer, of_each, of_trace in (
        ("read batch", 0.2, (30 / 50 + 10 / 150) / 2, 40 / 250),
        ("forward", 0.4, (20 / 50 + 60 / 150) / 2, 80 / 250),
        ("update", 0, None, None),
    ):
        case = f"fraction_of_step(spans, {name!r})"
        answer = number(call(fraction_of_step, spans, name), case)
        mistakes = {
            "That is the mean of the fractions of the steps: a short step would count as much as a long one. "
            "Divide the sum of the spans by the sum of the steps.": of_each,
            "The time between two steps does not count: divide by the sum of the durations of the steps.":
                of_trace,
            "That is a time in milliseconds: divide it by the time of all steps.": right_answer * 200,
            "That is a percentage: return a fraction between 0 and 1.": right_answer * 100,
            "Count the time of the spans, not how many there are.": 1,
        }  # fmt: skip
        compare(
            case, answer, right_answer,
            {sentence: wrong for sentence, wrong in mistakes.items() if wrong is not None},
            "Two steps take 50 and 150 ms.",
        )  # fmt: skip
    right("40 of 200 ms are reading and 80 of 200 ms are the forward pass.")


@exercise
def check_merge(merge: Callable) -> None:
    """Demand the union of intervals, ordered and without overlaps."""
    cases = [
        ([(1, 3), (2, 5), (7, 8)], [(1, 5), (7, 8)], "Intervals that overlap become one."),
        ([(7, 8), (2, 5), (1, 3)], [(1, 5), (7, 8)], "The intervals need not be in order: sort them."),
        ([(0, 10), (2, 3)], [(0, 10)],
         "An interval inside another one must not shorten it: take the larger of the two ends."),
        ([(0, 10), (2, 3), (5, 6)], [(0, 10)], "Compare with the last interval of the result."),
        ([(0, 1), (1, 2)], [(0, 2)], "An interval that begins where another one ends continues it."),
        ([], [], "No intervals have an empty union."),
    ]  # fmt: skip
    for given, expected, sentence in cases:
        answer = call_unchanged(merge, given)
        case = f"merge({given})"
        try:
            found = [(float(start), float(end)) for start, end in answer]
        except (TypeError, ValueError):
            raise NotYet(
                f"{case} must return a list of pairs (start, end). Received: {answer!r}"
            ) from None
        if found != expected:
            raise NotYet(f"{case} is {answer}, expected {expected}. {sentence}")
    right("six small unions, with overlapping, nested, touching and no intervals.")


@exercise
def check_exposed(exposed: Callable) -> None:
    """Demand the time of the communication that no computation covers."""
    cases = [
        ([(10, 30), (40, 50)], [(0, 20), (45, 60)], 15),
        ([(10, 30), (20, 40)], [(0, 10)], 30),
        ([(10, 20)], [(0, 30), (5, 12)], 0),
        ([(10, 20)], [], 10),
        ([], [(0, 10)], 0),
    ]
    for communication, compute, expected in cases:
        case = f"exposed({communication}, {compute})"
        answer = number(call(exposed, communication, compute), case, "of milliseconds")
        both, busy = length(communication + compute), length(compute)
        mistakes = {
            "That is all communication: subtract what computation covers.": length(communication),
            "Overlapping all-reduces count twice: take the union first.": _sum(communication),
            "That is the time in which anything happens: subtract the time of the computation.": both,
            "That is the communication that is hidden. Return the rest of it.":
                length(communication) - expected,
            "That is the computation that no communication covers: the two are swapped.":
                both - length(communication),
            "Subtract the union of the computation, not the sum of its durations.":
                both - _sum(compute),
            "Subtracting the two sums is right only if all computation is inside the communication.":
                [length(communication) - busy, max(0, length(communication) - busy)],
        }  # fmt: skip
        compare(case, answer, expected, mistakes, "See the worked example above the exercise.")
    right("five small cases, among them overlapping all-reduces and no computation at all.")


@exercise
def check_self_time(self_time: Callable) -> None:
    """Demand the duration of a span without the spans inside it."""
    outer = Span("aten::linear", "operation", 1, 0, 10)
    inner = Span("aten::addmm", "operation", 1, 2, 6)
    spans = [
        outer,
        inner,
        Span("aten::copy_", "operation", 1, 3, 2),
        Span("aten::t", "operation", 1, 8, 1),
        Span("gloo:all_reduce", "communication", 2, 1, 8),
        Span("aten::gelu", "operation", 1, 10, 5),
    ]
    cases = [
        (outer, 3, {
            "The span aten::copy_ is inside aten::addmm, so its 2 ms are subtracted twice: take the union of "
            "the spans inside.": 1,
            "A span of another track is not inside this one: use span.contains.": [0, 2, 1, -5, -7],
            "That is the total time: subtract the spans inside.": 10,
            "That is the time of the spans inside: subtract it from the duration.": 7,
        }),
        (inner, 4, {"That is the total time: subtract the spans inside.": 6}),
        (spans[-1], 5, {"A span without others inside it has its whole duration as self time.": 0}),
    ]  # fmt: skip
    for span, expected, mistakes in cases:
        case = f"the self time of {span.name}"
        answer = number(call(self_time, span, spans), case, "of milliseconds")
        compare(case, answer, expected, mistakes, "See the worked example above the exercise.")
    right("3 of 10 ms, 4 of 6 ms, and 5 of 5 ms.")


@exercise
def check_lateness(lateness: Callable) -> None:
    """Demand the median of how much later rank 1 is ready than rank 0."""
    ready = {("a", 0): (1, 3), ("b", 0): (2, 2.5), ("a", 1): (10, 19), ("b", 1): (12, 11)}
    rows = []
    for (tensor, step), (first, second) in ready.items():
        rows += [(tensor, step, "ready 0", first), (tensor, step, "ready 1", second)]
        rows += [(tensor, step, "negotiate", min(first, second))]
    table = pd.DataFrame(rows, columns=["tensor", "step", "phase", "start"])
    answer = number(call(lateness, table), "lateness(table)", "of milliseconds")
    mistakes = {
        "That is how much later rank 0 is. Subtract the times of rank 0 from those of rank 1.": -1.25,
        "That is the mean, which one slow step can change a lot. Take the median.": 2.625,
        "That is the difference of the two medians. Subtract first, and take the median of the differences.":
            7 - 6,
    }  # fmt: skip
    compare(
        "lateness(table)", answer, 1.25, mistakes, "The four differences are 2, 0.5, 9 and -1 ms."
    )
    right("the median of 2, 0.5, 9 and -1 ms is 1.25 ms.")


def _sum(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)
