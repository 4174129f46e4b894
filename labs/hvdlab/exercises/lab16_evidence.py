"""The evidence that lab 16 demands for a diagnosis, and the checks of its two small functions."""

from collections.abc import Callable
from dataclasses import dataclass

from hvdlab.exercises import NotYet, call, call_unchanged, exercise, number, right

STARTS_APART = (
    0.005  # distance of the norms: different initial weights lie above, one step of training below
)


@dataclass(frozen=True)
class Evidence:
    """What a learner must have seen before the diagnosis of a case counts.

    Attributes:
        asked: what to enter, in words.
        holds: function (value, script) -> whether the value is right for this script.
        look: where to look.
    """

    asked: str
    holds: Callable[[float, str], bool]
    look: str


def line_of(script: str, *texts: str) -> list[int]:
    """Return the numbers of the lines that contain one of the texts.

    Args:
        script: the source of the script.
        *texts: what to search for.
    """
    lines = enumerate(script.splitlines(), 1)
    return [at for at, line in lines if any(text in line for text in texts)]


EVIDENCE = {
    1: Evidence(
        "the distance of the weights after step 1, a number from log.distance()",
        lambda value, script: STARTS_APART < value < 100,
        "It is the first value of log.distance().",
    ),
    2: Evidence(
        "the percentage of steps in which both ranks read the same batch, 0 to 100",
        lambda value, script: value == 100,
        'Compare the two columns of log.side_by_side("batch") row by row.',
    ),
    3: Evidence(
        "the distance of the weights after step 1, a number from log.distance()",
        lambda value, script: 0 < value < STARTS_APART,
        "It is the first value of log.distance(), and it is neither 0 nor as large as in case 1.",
    ),
    4: Evidence(
        "the number of batches that an epoch has on rank 0",
        lambda value, script: value == 33,  # 2049 images in batches of 64
        "It is in the column `length` of log.ends.",
    ),
    5: Evidence(
        "the number of the line in which rank 0 waits",
        lambda value, script: value in line_of(script, "hvd.allreduce("),
        "The column `end` of log.ends names an operation and a line for each rank.",
    ),
    6: Evidence(
        "the learning rate of step 1 divided by RATE of the script",
        lambda value, script: abs(value - 4) < 1e-6,
        'Take the first row of log.side_by_side("rate"), and RATE from the first lines of the script.',
    ),
    7: Evidence(
        "the number of the line with the test that ends the training",
        lambda value, script: value in line_of(script, "mean < best", "if stale ==", "break"),
        "Search the script for `break`, and for the test above it.",
    ),
}


def check_evidence(case: int, evidence: object, script: str) -> None:
    """Demand the evidence of a case; the message does not tell the mistake.

    Args:
        case: the number of the case.
        evidence: what the learner entered.
        script: the source of the script of the case.

    Raises:
        NotYet: there is no evidence, or it does not fit the script and its run.
    """
    wanted = EVIDENCE[case]
    if evidence is None:
        raise NotYet(f"A diagnosis needs evidence. Set `evidence` to {wanted.asked}.")
    value = number(evidence, f"the evidence of case {case}")
    if not wanted.holds(value, script):
        raise NotYet(f"{value:g} is not {wanted.asked}. {wanted.look}")


@exercise
def check_first_difference(first_difference: Callable) -> None:
    """Demand the first step at which two ranks differ, and None if they never do.

    Args:
        first_difference: The learner's `first_difference(values0, values1, tolerance)`.
    """
    for arguments, expected, why in (
        (([1.0, 2.0, 3.0], [1.0, 2.5, 3.5], 0.1), 2, "The values of step 1 agree, those of step 2 do not."),
        (([1.0, 2.0], [1.5, 2.0], 0.1), 1, "They differ in the first step. Steps are counted from 1."),
        (([1.0, 2.0], [1.05, 1.95], 0.1), None, "No difference is larger than the tolerance."),
        (([3.0, 2.0], [3.0, 2.5], 0.1), 2, "A value of rank 0 may be smaller or larger than that of rank 1."),
        (([0.0, 1.0, 1.0], [0.0, 2.0, 1.0], 0.1), 2, "The first difference counts."),
    ):  # fmt: skip
        answer = call_unchanged(first_difference, *arguments)
        case = f"first_difference{arguments}"
        if answer != expected or isinstance(answer, bool):
            counted = (
                " Steps are counted from 1, not from 0." if answer == (expected or 0) - 1 else ""
            )
            raise NotYet(f"{case} is {answer!r}, expected {expected!r}. {why}{counted}")
    right(
        "your function finds the step at which two ranks part. Whether this is step 1 or a later one already "
        "separates a wrong start from a wrong step."
    )


@exercise
def check_missing_ranks(missing_ranks: Callable) -> None:
    """Demand, for each collective in which somebody waits, the ranks that have not arrived."""
    for waiting, size, expected, why in (
        ({0: "loss", 2: "loss"}, 4, {"loss": [1, 3]}, "Ranks 0 and 2 wait for ranks 1 and 3."),
        ({0: "grad"}, 2, {"grad": [1]}, "Rank 0 waits for rank 1."),
        ({0: "loss", 1: "grad"}, 2, {"loss": [1], "grad": [0]},
         "Each rank waits in another collective, so each of them misses one rank."),
        ({}, 2, {}, "No rank waits, so nothing is missing."),
        ({0: "grad", 1: "grad"}, 2, {"grad": []}, "Both have arrived: then it is the network."),
    ):  # fmt: skip
        answer = call(missing_ranks, dict(waiting), size)
        case = f"missing_ranks({waiting}, {size})"
        if not isinstance(answer, dict):
            raise NotYet(f"{case} must return a dict. Received: {answer!r}")
        found = {name: sorted(ranks) for name, ranks in answer.items()}
        if found != expected:
            arrived = {
                name: [r for r, where in waiting.items() if where == name] for name in expected
            }
            hint = " These are the ranks that wait. Name the others." if found == arrived else ""
            raise NotYet(f"{case} is {found}, expected {expected}. {why}{hint}")
    right(
        "this is what Horovod's stall message prints: the name of the collective and the ranks that have not "
        "called it. The fault is on the missing ranks, not on those that wait."
    )
