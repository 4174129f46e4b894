"""The diagnoses of lab 17: right answers pass, and each typical mistake gets its sentence."""

import pytest

from hvdlab.course.chrome_trace import Span
from hvdlab.exercises import NotYet
from hvdlab.exercises import lab17_read_a_trace as exercises


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
    for case, evidence in EVIDENCE.items():
        exercises.check_diagnosis(case, exercises.ANSWERS[case], evidence, TRACES)
    out = capsys.readouterr().out
    assert out.count("Right: ") == 5
    assert "repeated-forward, 16 instead of 8" in out and "straggler, 4 instead of 1" in out


def test_the_evidence_of_a_run_is_what_can_be_counted_by_hand():
    found = exercises.measures(TRACES[4])
    # All-reduces from 50 to 90 ms, of which the computation covers 10 ms.
    assert found["no-overlap"] == pytest.approx(0.75)
    assert found["slow-update"] == pytest.approx(0.01)
    assert set(found) == set(exercises.NAMES)


def test_the_evidence_of_a_straggler_may_be_a_union():
    early = Span("gloo:all_reduce", "communication", 3, 50, 40)  # while the others run
    traces = {**TRACES, 4: [[*rank(reduced=40), early], rank(reduced=10)]}
    assert exercises.measures(traces[4])["straggler"] == 6
    for evidence in (6, 4):  # 120 ms in all, 80 ms of time, and 20 ms on rank 1
        exercises.check_diagnosis(4, "straggler", evidence, traces)


MISTAKES = [
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
