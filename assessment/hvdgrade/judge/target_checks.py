"""Check whether the accuracy was reached within the time budget."""

from hvdgrade.judge.check import Case, Finding, check, likely

FASTER = likely(
    "each rank makes as many steps as a single process: it must make 1/N of them",
    "the batch of a rank is small, so that exchanging gradients takes most of the time: use a larger batch",
)


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
        return Finding("partial", rationale, FASTER, numbers, part=0.25)
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
        size = case.evidence.script.rank_and_size[1]
        return likely(
            f"the learning rate does not suit the batch of all ranks together: scale it with {size}, and "
            "begin with a warmup",
            "there are too few epochs: if the accuracy still rises, train for more epochs within the budget",
        )
    last, seen = entries[-1], case.evidence.observation
    epoch = last.seconds / len(entries)
    left = case.budget - last.seconds
    if last.meets(rules) and seen.stop_cause == "ended" and left > epoch:
        return (
            f"The last epoch reached the accuracy, and {rules.consecutive_epochs} consecutive epochs must. "
            f"The script ended {left:.0f} s before the end of the budget, and an epoch takes {epoch:.0f} s: "
            "train for one more epoch"
        )
    if last.meets(rules):
        return FASTER
    return likely(
        "the accuracy is not stable: decrease the learning rate towards the end",
        "the schedule does not fit the number of epochs: let it end with the last epoch",
    )
