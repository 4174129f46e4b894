"""The cases of lab 17: names of the faults, the evidence of each in a trace, and the diagnosis of a run."""

import math
from dataclasses import dataclass

from hvdlab.course.chrome_trace import Span, steps
from hvdlab.exercises import NotYet, compare, exercise, numbers, right

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
        "time of the all-reduces of rank 0 divided by that of rank 1",
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
        "no-overlap": (length(sent + busy) - length(busy)) / length(sent),
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
    if diagnosis == "straggler":  # the sum of the all-reduces or their union: both show who waits
        unions = [
            length([(s.start, s.end) for s in rank if s.kind == "communication"])
            for rank in traces[case]
        ]
        if math.isclose(answer, unions[0] / unions[1], rel_tol=0.02):
            expected = answer
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


def length(intervals: Intervals) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
