"""Checks of lab 17: fractions, unions of intervals and self time of a trace, and five runs to diagnose."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from hvdlab.course.chrome_trace import Span, steps
from hvdlab.exercises import NotYet, call, call_unchanged, compare, exercise, number, numbers, right

Intervals = list[tuple[float, float]]
RANK_0_AND_1 = 2


@dataclass(frozen=True)
class Diagnosis:
    """A fault that a trace can show.

    Args:
        title: what is wrong.
        evidence: which number of the trace shows it.
    """

    title: str
    evidence: str


NAMES = {
    "blocking-read": Diagnosis(
        "each step waits until its batch has been read", "fraction of the step in `read batch`, rank 0"
    ),
    "small-messages": Diagnosis(
        "the gradients are sent in many small all-reduces", "all-reduces per step, rank 0"
    ),
    "straggler": Diagnosis(
        "one rank computes longer, and the other one waits for it",
        "sum of the all-reduces of rank 0 divided by that of rank 1",
    ),
    "synchronization": Diagnosis(
        "single numbers are taken out of tensors in every step", "calls of `aten::item` per step, rank 0"
    ),
    "repeated-forward": Diagnosis(
        "the forward pass is computed twice", "calls of `aten::linear` per step, rank 0"
    ),
    "no-overlap": Diagnosis(
        "communication starts only after the backward pass",
        "fraction of the communication that is exposed, rank 0",
    ),
    "slow-update": Diagnosis(
        "the optimizer takes most of the step", "fraction of the step in `update`, rank 0"
    ),
}  # fmt: skip
ANSWERS = {
    1: "blocking-read",
    2: "repeated-forward",
    3: "small-messages",
    4: "straggler",
    5: "synchronization",
}
# Where to look in each case to rule out another diagnosis.
TELLING = {
    1: "Which phase takes a much larger fraction of the step than in the correct run?",
    2: "Which operations are called more often per step than in the correct run, and by which factor?",
    3: "Look at the row of the all-reduces: how many are there in one step?",
    4: "Compare the two ranks: which one communicates for most of the step, and which one computes?",
    5: "Which operations are called per step in this run, and never in the correct run?",
}
MEANING = {
    1: "the main thread does nothing while it reads. Read ahead in other processes (lab 10).",
    2: "every layer is called twice in the forward phase. Compute the metric from the logits that you have.",
    3: "each gradient is sent by itself. Let DDP or Horovod fuse them (labs 5 and 12).",
    4: "rank 0 is early and waits. The cause is on rank 1, whose all-reduces are short.",
    5: "each of these calls makes one number of Python. On a GPU each of them waits for the GPU.",
}


@exercise
def check_fraction_of_step(fraction_of_step: Callable) -> None:
    """Demand the fraction of all steps that the spans with a name take.

    Args:
        fraction_of_step: The learner's `fraction_of_step(spans, name)`.
    """
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
    """Demand the union of intervals, ordered and without overlaps.

    Args:
        merge: The learner's `merge(intervals)`.
    """
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
    """Demand the time of the communication that no computation covers.

    Args:
        exposed: The learner's `exposed(communication, compute)`.
    """
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
        both, busy = _length(communication + compute), _length(compute)
        mistakes = {
            "That is all communication: subtract what computation covers.": _length(communication),
            "Overlapping all-reduces count twice: take the union first.": _sum(communication),
            "That is the time in which anything happens: subtract the time of the computation.": both,
            "That is the communication that is hidden. Return the rest of it.":
                _length(communication) - expected,
            "That is the computation that no communication covers: the two are swapped.":
                both - _length(communication),
            "Subtract the union of the computation, not the sum of its durations.":
                both - _sum(compute),
            "Subtracting the two sums is right only if all computation is inside the communication.":
                [_length(communication) - busy, max(0, _length(communication) - busy)],
        }  # fmt: skip
        compare(case, answer, expected, mistakes, "See the worked example above the exercise.")
    right("five small cases, among them overlapping all-reduces and no computation at all.")


@exercise
def check_self_time(self_time: Callable) -> None:
    """Demand the duration of a span without the spans inside it.

    Args:
        self_time: The learner's `self_time(span, spans)`.
    """
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
    """Demand the median of how much later rank 1 is ready than rank 0.

    Args:
        lateness: The learner's `lateness(table)`.
    """
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


def measures(ranks: list[list[Span]]) -> dict[str, float]:
    """Return the evidence of each diagnosis in one run.

    Args:
        ranks: The spans of rank 0 and rank 1.
    """
    spans = ranks[0]
    made = steps(spans)
    whole, main = sum(step.duration for step in made), made[0].track
    sent = [(span.start, span.end) for span in spans if span.kind == "communication"]
    busy = [(s.start, s.end) for s in spans if s.kind == "operation" and s.track == main]
    sums = [sum(s.duration for s in rank if s.kind == "communication") for rank in ranks]

    def calls(name: str) -> float:
        return sum(span.name == name for span in spans) / len(made)

    def fraction(name: str) -> float:
        return sum(span.duration for span in spans if span.name == name) / whole

    return {
        "blocking-read": fraction("read batch"),
        "small-messages": len(sent) / len(made),
        "straggler": sums[0] / sums[1],
        "synchronization": calls("aten::item"),
        "repeated-forward": calls("aten::linear"),
        "no-overlap": (_length(sent + busy) - _length(busy)) / _length(sent),
        "slow-update": fraction("update"),
    }


@exercise
def check_diagnosis(
    case: int, diagnosis: str, evidence: float, traces: dict[int, list[list[Span]]]
) -> None:
    """Demand the right evidence for the named diagnosis, and then the right diagnosis.

    Args:
        case: The number of the case.
        diagnosis: One of NAMES.
        evidence: The number that NAMES asks for, computed from the trace.
        traces: The spans of both ranks by case; 0 is the correct run.
    """
    if diagnosis not in NAMES:
        raise NotYet(f"diagnosis must be one of {', '.join(NAMES)}. Received: {diagnosis!r}")
    asked = NAMES[diagnosis].evidence
    if len(traces[case]) != RANK_0_AND_1:
        raise NotYet(f"case {case} needs the traces of both ranks: run the cell that records it.")
    answer = numbers(evidence, "evidence", 1, f"({asked})")[0]
    expected, correct = measures(traces[case])[diagnosis], measures(traces[0])[diagnosis]
    made = len(steps(traces[case][0]))
    mistakes = {
        f"The trace has {made} steps: divide by their number.": made * expected,
        "That is a percentage: give a fraction between 0 and 1.": 100 * expected,
        "The ratio is upside down.": 1 / expected if expected else None,
        "That is the trace of rank 1: take rank 0.": measures(traces[case][::-1])[diagnosis],
        "That is the correct run, case 0: take the trace of this case.": correct,
    }
    mistakes = {sentence: wrong for sentence, wrong in mistakes.items() if wrong}
    try:
        compare("evidence", answer, expected, mistakes, rtol=0.02, atol=1e-4)
    except NotYet as error:
        sentence = str(error).partition(". ")[2]
        raise NotYet(
            f"For {diagnosis} the evidence is: {asked}. Yours is {answer:.4g}, which is another number. "
            f"{sentence}".strip()
        ) from None
    if diagnosis != ANSWERS[case]:
        raise NotYet(
            f"The evidence is computed correctly: {answer:.3g}. In the correct run it is {correct:.3g}. "
            f"This is not what makes case {case} slow. {TELLING[case]}"
        )
    right(f"{diagnosis}, {answer:.3g} instead of {correct:.3g}: {MEANING[case]}")


def _length(intervals: Intervals) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _sum(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)
