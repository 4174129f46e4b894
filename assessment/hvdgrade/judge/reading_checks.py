"""Check what the ranks read: different data on each rank, and together the whole training set."""

from hvdgrade.judge import run_causes as causes
from hvdgrade.judge.check import Case, Finding, check
from hvdgrade.judge.conditions import SAME_BATCHES
from hvdgrade.judge.parallel_causes import likely


@check("shards", title="ranks read different data")
def shards(case: Case) -> Finding:
    epochs = case.evidence.epochs
    if case.evidence.ranks == 1:
        return Finding("skipped", "one rank only: it reads everything")
    worst = max(epochs, key=lambda epoch: max(epoch.shared, epoch.same_order))
    numbers = {e.epoch: {"shared": e.shared, "same_order": e.same_order} for e in epochs}
    if not case.evidence.read_batches:
        return Finding("skipped", "not judged: no rank recorded what it read, see below")
    if worst.same_order > SAME_BATCHES:
        rationale = (
            f"two ranks read identical batches ({worst.same_order:.0%} of epoch {worst.epoch})"
        )
    elif worst.shared > case.rules.max_shared_examples:
        rationale = (
            f"two ranks share {worst.shared:.0%} of the examples of epoch {worst.epoch}: "
            "the work is not divided"
        )
    else:
        rationale = f"ranks share at most {worst.shared:.0%} of an epoch's examples"
        return Finding("pass", rationale, evidence=numbers)
    return Finding("fail", rationale, likely(case, *causes.SHARDS), numbers)


@check("steps", title="equal steps, whole epochs")
def steps(case: Case) -> Finding:
    """Check that all ranks read equally many examples and together the whole training set in each epoch."""
    epochs = case.evidence.epochs
    numbers = {e.epoch: {"examples": e.read, "coverage": e.coverage} for e in epochs}
    missing = incomplete_reading(case)
    if missing and case.evidence.read_batches and max(e.same_order for e in epochs) > SAME_BATCHES:
        # The indices of parts that the script cut out itself are the same on each rank.
        rationale = "not judged: the records do not show which images each rank read, see above"
        return Finding("skipped", rationale)
    problem = nothing_read(case) or unequal_reading(case) or missing or epoch_without_training(case)
    if problem:
        return Finding("fail", *problem, numbers)
    rationale = f"{epochs[0].read[0]:,} examples a rank and epoch, together the whole training set"
    return Finding("pass", rationale, evidence=numbers)


def nothing_read(case: Case) -> tuple[str, str] | None:
    """Return (rationale, help) if the records name no example that a rank read."""
    if case.evidence.read_batches:
        return None
    return "no rank recorded which examples it read", likely(case, *causes.NOTHING_READ)


def unequal_reading(case: Case) -> tuple[str, str] | None:
    """Return (rationale, help) if ranks read unequally many examples, or some of another set."""
    epochs = case.evidence.epochs
    for epoch in epochs:
        if max(epoch.read) != min(epoch.read):
            return (
                f"epoch {epoch.epoch}: examples by rank " + ", ".join(map(str, epoch.read)),
                likely(case, *causes.UNEQUAL_READING),
            )
    for epoch in epochs:
        if epoch.outside:
            return (
                f"in epoch {epoch.epoch} the ranks read {epoch.outside:,} examples that the "
                "training set does not have",
                likely(case, *causes.OUTSIDE),
            )
    return None


def incomplete_reading(case: Case) -> tuple[str, str] | None:
    """Return (rationale, help) if all ranks together left out too much of the training set."""
    needed = case.rules.min_coverage
    short = next((epoch for epoch in case.evidence.epochs if epoch.coverage < needed), None)
    if short is None:
        return None
    rationale = (
        f"in epoch {short.epoch} all ranks together read {short.coverage:.0%} of "
        f"the training set, at least {needed:.0%} are needed"
    )
    return rationale, likely(case, *causes.INCOMPLETE)


def epoch_without_training(case: Case) -> tuple[str, str] | None:
    """Return (rationale, help) if an epoch took less time than training on its images can take."""
    evidence, epochs = case.evidence, case.evidence.epochs
    if not evidence.pass_seconds:
        return None
    for before, epoch in zip(epochs, epochs[1:], strict=False):
        took = evidence.arrival(epoch.epoch) - evidence.arrival(before.epoch)
        if took < case.rules.min_epoch_share * evidence.pass_seconds:
            return (
                f"epoch {epoch.epoch} took {took:.1f} s, and {evidence.ranks} processes that train on "
                f"this machine need {evidence.pass_seconds:.1f} s for one pass: what was read was not "
                "trained on",
                likely(case, *causes.TOO_FAST),
            )
    return None
