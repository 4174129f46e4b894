"""Check whether the accuracy was reached within the time budget."""

from hvdgrade.judge import conditions as measured
from hvdgrade.judge import run_causes as causes
from hvdgrade.judge.check import Case, Finding, check
from hvdgrade.judge.parallel_causes import likely


# A single process can reach the accuracy too, so it counts only for ranks that exchange something.
@check("targets", title="accuracy reached in time", depends_on=("ran", ("exchange", "flow")))
def targets(case: Case) -> Finding:
    rules, reached, budget = case.rules, case.seconds_to_target, case.budget
    rule = (
        f"train {rules.train_accuracy:.2f} and held out {rules.heldout_accuracy:.2f} in "
        f"{rules.consecutive_epochs} consecutive epochs"
    )
    numbers = {"budget_seconds": round(budget, 2), "seconds_to_target": reached}
    if reached is not None and reached <= budget:
        left = 1 - reached / budget
        rationale = f"{rule} after {reached:.1f} s of {budget:.1f} s ({left:.0%} left)"
        return Finding("pass", rationale, evidence=numbers)
    if reached is not None:
        rationale = f"{rule} only after {reached:.1f} s; the budget is {budget:.1f} s"
        return Finding("partial", rationale, likely(case, *causes.TOO_SLOW), numbers, part=0.25)
    best = max(case.timeline, key=lambda entry: entry.heldout_accuracy)
    rationale = (
        f"{rule} not reached in {budget:.1f} s; best epoch {best.epoch}: train "
        f"{best.train_accuracy:.3f}, held out {best.heldout_accuracy:.3f}"
    )
    return Finding("fail", rationale, too_low(case), numbers)


def too_low(case: Case) -> str:
    """Return help for a run that did not reach the targets in consecutive epochs."""
    entries, rules = case.timeline, case.rules
    if not any(entry.meets(rules) for entry in entries):
        return likely(case, *causes.TOO_LOW)
    last = entries[-1]
    if last.meets(rules) and measured.has_time_left(case):
        left, epoch = case.budget - last.seconds, last.seconds / len(entries)
        return (
            f"The last epoch reached the accuracy, and {rules.consecutive_epochs} consecutive epochs must. "
            f"The script ended {left:.0f} s before the end of the budget, and an epoch takes {epoch:.0f} s: "
            "train for one more epoch"
        )
    return likely(case, *(causes.TOO_SLOW if last.meets(rules) else causes.UNSTABLE))
