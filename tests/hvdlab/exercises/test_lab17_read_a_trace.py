"""The checks of lab 17: right answers pass, and each typical mistake gets its sentence."""

import pytest
from changed import changed

from hvdlab.course.chrome_trace import Span, steps
from hvdlab.exercises import NotYet
from hvdlab.exercises import lab17_read_a_trace as exercises


def fraction_of_step(spans, name):
    inside = sum(span.duration for span in spans if span.name == name)
    return inside / sum(step.duration for step in steps(spans))


def mean_of_fractions(spans, name):
    inside = [span.duration for span in spans if span.name == name] or [0, 0]
    return sum(i / s.duration for i, s in zip(inside, steps(spans), strict=True)) / 2


def merge(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals):
    return sum(end - start for start, end in merge(intervals))


def summed(intervals):
    return sum(end - start for start, end in intervals)


def exposed(communication, compute):
    together = length(communication + compute)
    return together - length(compute)


def self_time(span, spans):
    inside = [(each.start, each.end) for each in spans if span.contains(each)]
    return span.duration - length(inside)


def lateness(table):
    starts = table.pivot(index=["tensor", "step"], columns="phase", values="start")
    late = starts["ready 1"] - starts["ready 0"]
    return late.median()


def in_place(intervals):
    intervals.sort()
    return merge(intervals)


def rank(reading=0, forward_calls=8, all_reduces=4, items=0, reduced=20):
    """Two steps of one rank, 100 ms each: computation to 60 ms, and then the all-reduces."""
    spans = []
    for number in range(2):
        zero = 200 * number
        spans += [
            Span("step", "annotation", 1, zero, 100),
            Span("read batch", "annotation", 1, zero, reading),
        ]
        spans += [Span("update", "annotation", 1, zero + 99, 1)]
        spans += [
            Span("aten::linear", "operation", 1, zero + reading, 60 - reading)
        ] * forward_calls
        spans += [Span("aten::item", "operation", 1, zero + 50, 1)] * items
        one = reduced / all_reduces
        spans += [
            Span("gloo:all_reduce", "communication", 2, zero + 50 + n * one, one)
            for n in range(all_reduces)
        ]
    return spans


TRACES = {
    0: [rank(), rank()],
    1: [rank(reading=40), rank(reading=41)],
    2: [rank(forward_calls=16), rank()],
    3: [rank(all_reduces=24), rank(all_reduces=24)],
    4: [rank(reduced=40), rank(reduced=10)],
    5: [rank(items=7), rank(items=6)],
}
EVIDENCE = {1: 0.4, 2: 16, 3: 24, 4: 4, 5: 7}


def diagnosed(case, diagnosis):
    return lambda evidence: exercises.check_diagnosis(case, diagnosis, evidence, TRACES)


def test_right_answers_pass(capsys):
    exercises.check_fraction_of_step(fraction_of_step)
    exercises.check_merge(merge)
    exercises.check_exposed(exposed)
    exercises.check_self_time(self_time)
    exercises.check_lateness(lateness)
    for case, evidence in EVIDENCE.items():
        exercises.check_diagnosis(case, exercises.ANSWERS[case], evidence, TRACES)
    out = capsys.readouterr().out
    assert out.count("Right: ") == 10
    assert "repeated-forward, 16 instead of 8" in out and "straggler, 4 instead of 1" in out


def test_the_evidence_of_a_run_is_what_can_be_counted_by_hand():
    found = exercises.measures(TRACES[4])
    # All-reduces from 50 to 90 ms, of which the computation covers 10 ms.
    assert found["no-overlap"] == pytest.approx(0.75)
    assert found["slow-update"] == pytest.approx(0.01)
    assert set(found) == set(exercises.NAMES)


MISTAKES = [
    (exercises.check_fraction_of_step, mean_of_fractions, "mean of the fractions"),
    (exercises.check_fraction_of_step, changed(fraction_of_step, "return inside /", "return inside or"),
     "time in milliseconds"),
    (exercises.check_fraction_of_step, changed(fraction_of_step, "return inside", "return 100 * inside"),
     "percentage"),
    (exercises.check_fraction_of_step,
     changed(fraction_of_step, "sum(step.duration for step in steps(spans))", "250"), "between two steps"),
    (exercises.check_fraction_of_step, lambda spans, name: None, "is `return` missing"),
    (exercises.check_merge, changed(merge, "sorted(intervals)", "intervals"), "sort them"),
    (exercises.check_merge, changed(merge, "max(merged[-1][1], end)", "end"), "larger of the two ends"),
    (exercises.check_merge, changed(merge, "start <= merged", "start < merged"), "continues it"),
    (exercises.check_merge, lambda intervals: sorted(intervals), "become one"),
    (exercises.check_merge, lambda intervals: 4, "list of pairs"),
    (exercises.check_merge, in_place, "changes what it is given"),
    (exercises.check_exposed, lambda a, b: length(a), "subtract what computation covers"),
    (exercises.check_exposed, lambda a, b: length(a + b), "in which anything happens"),
    (exercises.check_exposed, lambda a, b: exposed(b, a), "swapped"),
    (exercises.check_exposed, lambda a, b: length(a) - exposed(a, b), "hidden"),
    (exercises.check_exposed, lambda a, b: summed(a) - length(a) + exposed(a, b), "take the union first"),
    (exercises.check_exposed, lambda a, b: length(a + b) - summed(b), "not the sum of its durations"),
    (exercises.check_exposed, lambda a, b: length(a) - length(b), "Subtracting the two sums"),
    (exercises.check_self_time, changed(self_time, "length(inside)", "summed(inside)"), "subtracted twice"),
    (exercises.check_self_time, lambda span, spans: span.duration, "total time"),
    (exercises.check_self_time, changed(self_time, "span.duration - ", ""), "time of the spans inside"),
    (exercises.check_self_time,
     changed(self_time, "span.contains(each)",
             "each is not span and span.start <= each.start and each.end <= span.end"), "another track"),
    (exercises.check_lateness, lambda table: -lateness(table), "how much later rank 0"),
    (exercises.check_lateness, changed(lateness, "late.median()", "late.mean()"), "Take the median"),
    (exercises.check_lateness,
     changed(lateness, "late.median()", 'starts["ready 1"].median() - starts["ready 0"].median()'),
     "difference of the two medians"),
    (diagnosed(1, "slow-network"), 0.4, "diagnosis must be one of blocking-read"),
    (diagnosed(1, "blocking-read"), 40, "percentage"),
    (diagnosed(1, "blocking-read"), 0.41, "trace of rank 1"),
    (diagnosed(1, "blocking-read"), None, "returned None|must return"),
    (diagnosed(3, "small-messages"), 48, "The trace has 2 steps"),
    (diagnosed(3, "small-messages"), 4, "correct run, case 0"),
    (diagnosed(4, "straggler"), 0.25, "upside down"),
    (diagnosed(4, "no-overlap"), 0.75, "correctly: 0.75.*what makes case 4 slow.*Compare the two ranks"),
    (diagnosed(5, "blocking-read"), 704, "fraction of the step in `read batch`.*another number"),
    (diagnosed(5, "repeated-forward"), 8, "In the correct run it is 8.*never in the correct run"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "wrong", "says"), MISTAKES)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
