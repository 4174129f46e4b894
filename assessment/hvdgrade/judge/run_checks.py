"""The checks of the graded run: whether it ran, what its ranks read, and whether it reached the targets.

Every rationale says what the grader measured. Every help text names the likely cause and the place to
look at.
"""

from hvdgrade.evidence.evidence import EpochEvidence
from hvdgrade.evidence.observation import Observation
from hvdgrade.judge.check import Case, Finding, check, last_error, where_they_wait

LIMITS = {
    "out_of_memory": "it needed more memory than it was given",
    "too_many_processes": "it started more processes than it may",
    "disk_full": "it wrote more to the disk than it may",
}
RECORD_THE_NETWORK = (
    "let Recorder write the weights of assessment_network(), unchanged, after every epoch"
)
FASTER = "the accuracy is there: make it faster. Does each rank do 1/N of an epoch's steps?"


@check("ran", title="every rank runs and records", depends_on=())
def ran(case: Case) -> Finding:
    seen = case.evidence.observation
    refused = seen.refused + case.evidence.refused
    recorded = [len(seen.of(rank)) for rank in range(seen.ranks)]
    numbers = {
        "ranks": seen.ranks,
        "epochs_recorded": recorded,
        "stop_cause": seen.stop_cause,
        "exit_code": seen.exit_code,
        "refused": refused,
    }
    epochs = epochs_in_words(recorded)
    if seen.stop_cause not in ("ended", "timeout"):
        rationale, help = stopped(seen, epochs, case.rules.stall_seconds)
    elif refused:
        rationale, help = refused[0], RECORD_THE_NETWORK
    elif problem := too_few_epochs(seen, recorded, epochs, case.rules.consecutive_epochs):
        rationale, help = problem
    else:
        if seen.stop_cause == "timeout":
            epochs += "; ended by the grader when the time was over"
        return Finding("pass", epochs, evidence=numbers)
    return Finding("fail", rationale, help, numbers)


def epochs_in_words(recorded: list[int]) -> str:
    """Return how many epochs arrived from the ranks, given the number of each rank."""
    if max(recorded) != min(recorded):
        return "epochs recorded by rank: " + ", ".join(map(str, recorded))
    count = f"{min(recorded)} epoch" + ("" if min(recorded) == 1 else "s")
    return f"{count} of each of {len(recorded)} ranks arrived"


def stopped(seen: Observation, epochs: str, stall_seconds: float) -> tuple[str, str]:
    """Return (rationale, help) for a run that did not end by itself with exit code 0."""
    seconds = f"{seen.seconds:.1f} s"
    if seen.stop_cause == "crashed":
        return (
            f"the run ended with exit code {seen.exit_code} after {seconds}; {epochs}",
            last_error(seen.output) or "run it yourself with mpirun and read its error message",
        )
    if seen.stop_cause == "killed":
        return (
            f"the run was ended by signal {(seen.exit_code or 128) - 128} after {seconds}",
            "a crash below Python or too little memory: try a smaller batch, look at the output",
        )
    if seen.stop_cause in LIMITS:
        return (
            f"it was ended after {seconds}: {LIMITS[seen.stop_cause]}; {epochs}",
            "look for a loop that allocates, starts or writes more each time; try a smaller batch",
        )
    if seen.stop_cause == "took_more_cores":
        return (
            f"it was ended after {seconds}: it gave itself cores that it was not given",
            "others are graded on the other cores: leave out what sets the affinity of a process",
        )
    if seen.stop_cause == "output_flood":
        return (
            f"it printed {seen.output_bytes:,} bytes within {seen.seconds:.0f} s and was ended",
            "print once an epoch, on rank 0 only; look for a loop that never ends",
        )
    return (  # "hang"
        f"no rank did any work for {stall_seconds:.0f} s; {epochs}",
        "each rank waits for another: all ranks must make the same number of steps and the "
        f"same Horovod calls in the same order. {where_they_wait(seen)}",
    )


def too_few_epochs(
    seen: Observation, recorded: list[int], epochs: str, needed: int
) -> tuple[str, str] | None:
    """Return (rationale, help) if the ranks did not record enough epochs in common, else None."""
    common = set.intersection(*(set(seen.of(rank)) for rank in range(seen.ranks)))
    if max(recorded) == 0:
        rationale = (
            f"it ended by itself after {seen.seconds:.1f} s and recorded nothing"
            if seen.stop_cause == "ended"
            else f"no epoch was recorded within the {seen.seconds:.0f} s it was given"
        )
        help = "call recorder.epoch_end(epoch) on every rank after each epoch (Keras: the callback)"
        if seen.stop_cause == "timeout" and where_they_wait(seen):
            help += f". {where_they_wait(seen)}"
        return rationale, help
    if min(recorded) == 0:
        help = "every rank records its own weights: do not put the recorder under 'if rank == 0'"
        return epochs, help
    if min(recorded) < needed:
        return f"{epochs}, at least {needed} are needed", "train for more epochs, or faster ones"
    if len(common) < needed or before_the_last(seen) - common:
        return (
            f"the ranks recorded different epochs: {len(common)} of them came from every rank",
            "give recorder.epoch_end the number of the epoch, which is the same on every rank",
        )
    return None


def before_the_last(seen: Observation) -> set[int]:
    """Return the epochs that at least one rank recorded, without the latest one.

    The run may have ended when only some of the ranks had recorded the latest epoch.
    """
    epochs = {weights.epoch for weights in seen.weights}
    return epochs - {max(epochs)}


@check("shards", title="ranks read different data")
def shards(case: Case) -> Finding:
    epochs = case.evidence.epochs
    if case.evidence.ranks == 1:
        return Finding("skipped", "one rank only: it reads everything")
    worst = max(epochs, key=lambda epoch: max(epoch.shared, epoch.same_order))
    numbers = {e.epoch: {"shared": e.shared, "same_order": e.same_order} for e in epochs}
    help = (
        "give Batches the whole training set and this process's place: rank=hvd.rank(), size=hvd.size() "
        "(parts that you cut out yourself look the same on each rank)"
    )
    if worst.same_order > 0.5:
        rationale = (
            f"two ranks read identical batches ({worst.same_order:.0%} of epoch {worst.epoch})"
        )
    elif worst.shared > case.rules.max_shared_examples:
        rationale = (
            f"two ranks share {worst.shared:.0%} of the examples of epoch {worst.epoch}: "
            "the work is not divided"
        )
    elif not any(max(epoch.read) for epoch in epochs):
        rationale = "no rank recorded which examples it read"
        help = (
            "train on hvdlab's Batches, and give the same Batches to the Recorder; it does not see what a "
            "DataLoader's worker processes read (num_workers=0)"
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
    problem = (
        unequal_reading(epochs)
        or incomplete_reading(epochs, case.rules.min_coverage)
        or epoch_without_training(case)
    )
    if problem:
        return Finding("fail", *problem, numbers)
    rationale = f"{epochs[0].read[0]:,} examples a rank and epoch, together the whole training set"
    return Finding("pass", rationale, evidence=numbers)


def unequal_reading(epochs: list[EpochEvidence]) -> tuple[str, str] | None:
    """Return (rationale, help) if ranks read unequally many examples, or some of another set."""
    for epoch in epochs:
        if max(epoch.read) != min(epoch.read):
            return (
                f"epoch {epoch.epoch}: examples by rank " + ", ".join(map(str, epoch.read)),
                "with unequal steps a rank waits for gradients that never come; use hvdlab's shard",
            )
    for epoch in epochs:
        if epoch.outside:
            return (
                f"in epoch {epoch.epoch} the ranks read {epoch.outside:,} examples that the "
                "training set does not have",
                "give Batches the training images as they are, without test images or other images",
            )
    return None


def incomplete_reading(epochs: list[EpochEvidence], needed: float) -> tuple[str, str] | None:
    """Return (rationale, help) if all ranks together left out more than 1 - `needed` of the training set."""
    short = next((epoch for epoch in epochs if epoch.coverage < needed), None)
    if short is None:
        return None
    help = (
        "an epoch is one pass of all ranks together, len(batches) steps, and no batch may be left out; "
        "record after each pass, not more often"
    )
    if short.coverage == 0 and short is not epochs[0]:
        help = (
            "read each epoch by its number, batches.epoch(epoch): each has an order of its own. A Keras "
            "dataset restarts in each fit: call fit once for all epochs, or make "
            "dataset(batches, first_epoch=epoch)"
        )
    rationale = (
        f"in epoch {short.epoch} all ranks together read {short.coverage:.0%} of "
        f"the training set, at least {needed:.0%} are needed"
    )
    return rationale, help


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
                "an epoch is one pass of all ranks together; record after each pass",
            )
    return None


@check("targets", title="accuracy reached in time")
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
    if any(entry.meets(rules) for entry in case.timeline):
        return Finding("fail", rationale, FASTER, numbers)
    help = (
        "look at accuracy against time: if it still rises, do more epochs in the time; if not, "
        "look at learning rate, its scaling with hvd.size(), and warm-up"
    )
    return Finding("fail", rationale, help, numbers)
