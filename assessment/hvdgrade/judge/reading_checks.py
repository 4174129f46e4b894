"""Check what the ranks read: different data on each rank, and together the whole training set."""

from hvdgrade.evidence.evidence import EpochEvidence
from hvdgrade.judge.check import Case, Finding, check, likely

SAME_BATCHES = 0.5  # fraction of positions at which two ranks read the same example


@check("shards", title="ranks read different data")
def shards(case: Case) -> Finding:
    epochs = case.evidence.epochs
    if case.evidence.ranks == 1:
        return Finding("skipped", "one rank only: it reads everything")
    worst = max(epochs, key=lambda epoch: max(epoch.shared, epoch.same_order))
    numbers = {e.epoch: {"shared": e.shared, "same_order": e.same_order} for e in epochs}
    if not case.evidence.read_batches:
        return Finding("skipped", "not judged: no rank recorded what it read, see below")
    rank, size = case.evidence.script.rank_and_size
    help = likely(
        f"Batches does not get this process's place: give it rank={rank}, size={size}",
        "each rank cuts out its own part of the training set: give Batches the whole set, because two parts "
        "look the same to the grader",
    )
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
    return Finding("fail", rationale, help, numbers)


@check("steps", title="equal steps, whole epochs")
def steps(case: Case) -> Finding:
    """Check that all ranks read equally many examples and together the whole training set in each epoch."""
    epochs = case.evidence.epochs
    numbers = {e.epoch: {"examples": e.read, "coverage": e.coverage} for e in epochs}
    missing = incomplete_reading(epochs, case.rules.min_coverage)
    if missing and case.evidence.read_batches and max(e.same_order for e in epochs) > SAME_BATCHES:
        # The indices of parts that the script cut out itself are the same on each rank.
        rationale = "not judged: the records do not show which images each rank read, see above"
        return Finding("skipped", rationale)
    problem = (
        nothing_read(case) or unequal_reading(epochs) or missing or epoch_without_training(case)
    )
    if problem:
        return Finding("fail", *problem, numbers)
    rationale = f"{epochs[0].read[0]:,} examples a rank and epoch, together the whole training set"
    return Finding("pass", rationale, evidence=numbers)


def nothing_read(case: Case) -> tuple[str, str] | None:
    """Return (rationale, help) if the records name no example that a rank read."""
    if case.evidence.read_batches:
        return None
    reader = case.evidence.script.reader
    causes = [
        "batches.epoch(epoch) and recorder.epoch_end(epoch) are called with different numbers",
        f"{reader or 'another reader'} reads the images: train on the batches of the hvdlab Batches that the "
        "Recorder is given, in the rank's own process (num_workers=0)",
    ]
    return "no rank recorded which examples it read", likely(*(causes[::-1] if reader else causes))


def unequal_reading(epochs: list[EpochEvidence]) -> tuple[str, str] | None:
    """Return (rationale, help) if ranks read unequally many examples, or some of another set."""
    for epoch in epochs:
        if max(epoch.read) != min(epoch.read):
            return (
                f"epoch {epoch.epoch}: examples by rank " + ", ".join(map(str, epoch.read)),
                likely(
                    "the script leaves out batches on some ranks: make len(batches) steps on each rank",
                    "each rank cuts out its own part of the training set: give Batches the whole set",
                ),
            )
    for epoch in epochs:
        if epoch.outside:
            return (
                f"in epoch {epoch.epoch} the ranks read {epoch.outside:,} examples that the "
                "training set does not have",
                likely(
                    "test images or other images were appended: give Batches the training set only",
                    "the Recorder is given other Batches than those that the script trains on",
                ),
            )
    return None


def incomplete_reading(epochs: list[EpochEvidence], needed: float) -> tuple[str, str] | None:
    """Return (rationale, help) if all ranks together left out more than 1 - `needed` of the training set."""
    short = next((epoch for epoch in epochs if epoch.coverage < needed), None)
    if short is None:
        return None
    causes = [
        "the script leaves out batches, or records more often than once per pass: an epoch is one pass of "
        "all ranks together, len(batches) steps",
        "it cuts out a part of the training set before Batches divides it",
    ]
    if short.coverage == 0 and short is not epochs[0]:
        causes = [
            "it reads the same epoch again: read each epoch by its number, batches.epoch(epoch), because "
            "each has an order of its own",
            "a Keras dataset restarts in each fit: call fit once for all epochs, or make "
            "dataset(batches, first_epoch=epoch)",
        ]
    rationale = (
        f"in epoch {short.epoch} all ranks together read {short.coverage:.0%} of "
        f"the training set, at least {needed:.0%} are needed"
    )
    return rationale, likely(*causes)


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
                likely(
                    "the script reads batches without training on them",
                    "it records more often than once per pass",
                ),
            )
    return None
