"""The checks of a run, one function per check. Each returns what was measured and what to do about it.

The checks of the communication between ranks are in `hvdgrade.judge.parallel_checks`. Every rationale
says what the grader measured. Every help text names the likely cause and the place to look at.
"""

from hvdgrade.evidence.observation import Observation
from hvdgrade.judge.check import Check, last_error, where_they_wait
from hvdgrade.profiles import Profile

RAN = "every rank runs and records"
SHARDS = "ranks read different data"
STEPS = "equal steps, whole epochs"
TARGETS = "accuracy reached in time"
LIMITS = {
    "out_of_memory": "it needed more memory than it was given",
    "too_many_processes": "it started more processes than it may",
    "disk_full": "it wrote more to the disk than it may",
}
RECORD_THE_NETWORK = (
    "let Recorder write the weights of assessment_network(), unchanged, after every epoch"
)
FASTER = "the accuracy is there: make it faster. Does each rank do 1/N of an epoch's steps?"


def check_ran(source: bytes, seen: Observation, evaluation: dict, profile: Profile) -> Check:
    recorded = [len(seen.of(rank)) for rank in range(seen.ranks)]
    common = set.intersection(*(set(seen.of(rank)) for rank in range(seen.ranks)))
    evidence = {
        "ranks": seen.ranks,
        "epochs_recorded": recorded,
        "stop_cause": seen.stop_cause,
        "exit_code": seen.exit_code,
        "refused": seen.refused + evaluation["refused"],
    }
    state, said, help = "fail", "", ""
    count = f"{min(recorded)} epoch" + ("" if min(recorded) == 1 else "s")
    epochs = f"{count} of each of {seen.ranks} ranks arrived"
    if max(recorded) != min(recorded):
        epochs = "epochs recorded by rank: " + ", ".join(map(str, recorded))
    if seen.stop_cause == "crashed":
        said = f"the run ended with exit code {seen.exit_code} after {seen.seconds:.1f} s; {epochs}"
        help = last_error(seen.output) or "run it yourself with mpirun and read its error message"
    elif seen.stop_cause == "killed":
        said = f"the run was ended by signal {(seen.exit_code or 128) - 128} after {seen.seconds:.1f} s"
        help = "a crash below Python or too little memory: try a smaller batch, look at the output"
    elif seen.stop_cause in LIMITS:
        said = f"it was ended after {seen.seconds:.1f} s: {LIMITS[seen.stop_cause]}; {epochs}"
        help = (
            "look for a loop that allocates, starts or writes more each time; try a smaller batch"
        )
    elif seen.stop_cause == "took_more_cores":
        said = (
            f"it was ended after {seen.seconds:.1f} s: it gave itself cores that it was not given"
        )
        help = "others are graded on the other cores: leave out what sets the affinity of a process"
    elif seen.stop_cause == "output_flood":
        said = f"it printed {seen.output_bytes:,} bytes within {seen.seconds:.0f} s and was ended"
        help = "print once an epoch, on rank 0 only; look for a loop that never ends"
    elif seen.stop_cause == "hang":
        said = f"no rank did any work for {profile.stall_seconds:.0f} s; {epochs}"
        help = (
            "each rank waits for another: all ranks must make the same number of steps and the "
            f"same Horovod calls in the same order. {where_they_wait(seen)}"
        )
    elif evidence["refused"]:
        said = evidence["refused"][0]
        help = RECORD_THE_NETWORK
    elif max(recorded) == 0:
        said = (
            f"it ended by itself after {seen.seconds:.1f} s and recorded nothing"
            if seen.stop_cause == "ended"
            else f"no epoch was recorded within the {seen.seconds:.0f} s it was given"
        )
        help = "call recorder.epoch_end(epoch) on every rank after each epoch (Keras: the callback)"
        if seen.stop_cause == "timeout" and where_they_wait(seen):
            help += f". {where_they_wait(seen)}"
    elif min(recorded) == 0:
        said = epochs
        help = "every rank records its own weights: do not put the recorder under 'if rank == 0'"
    elif min(recorded) < profile.consecutive_epochs:
        said = f"{epochs}, at least {profile.consecutive_epochs} are needed"
        help = "train for more epochs, or faster ones"
    elif len(common) < profile.consecutive_epochs or before_the_last(seen) - common:
        said = f"the ranks recorded different epochs: {len(common)} of them came from every rank"
        help = "give recorder.epoch_end the number of the epoch, which is the same on every rank"
    else:
        state, said = "pass", epochs
        if seen.stop_cause == "timeout":
            said += "; ended by the grader when the time was over"
    return Check("ran", RAN, state, profile.points["ran"], said, help, evidence)


def before_the_last(seen: Observation) -> set[int]:
    """Return the epochs that at least one rank recorded, without the latest one.

    The run may have ended when only some of the ranks had recorded the latest epoch.
    """
    epochs = {weights.epoch for weights in seen.weights}
    return epochs - {max(epochs)}


def check_shards(seen: Observation, epochs: list[dict], profile: Profile) -> Check:
    points, depends = profile.points["shards"], ["ran"]
    if seen.ranks == 1:
        said = "one rank only: it reads everything"
        return Check("shards", SHARDS, "skipped", points, said, depends_on=depends)
    worst = max(epochs, key=lambda epoch: max(epoch["shared"], epoch["same_order"]))
    evidence = {e["epoch"]: {"shared": e["shared"], "same_order": e["same_order"]} for e in epochs}
    help = (
        "give Batches the whole training set and this process's place: rank=hvd.rank(), size=hvd.size() "
        "(parts that you cut out yourself look the same on each rank)"
    )
    if worst["same_order"] > 0.5:
        said = f"two ranks read identical batches ({worst['same_order']:.0%} of epoch {worst['epoch']})"
        state = "fail"
    elif worst["shared"] > profile.max_shared_examples:
        said = (
            f"two ranks share {worst['shared']:.0%} of the examples of epoch {worst['epoch']}: "
            "the work is not divided"
        )
        state = "fail"
    elif not any(max(epoch["read"]) for epoch in epochs):
        said, state = "no rank recorded which examples it read", "fail"
        help = (
            "train on hvdlab's Batches, and give the same Batches to the Recorder; it does not see what a "
            "DataLoader's worker processes read (num_workers=0)"
        )
    else:
        said, state = f"ranks share at most {worst['shared']:.0%} of an epoch's examples", "pass"
        help = ""
    return Check("shards", SHARDS, state, points, said, help, evidence, depends)


def check_steps(
    seen: Observation, epochs: list[dict], profile: Profile, pass_seconds: float | None
) -> Check:
    """Check that all ranks read equally many examples and together the whole training set in each epoch.

    Args:
        seen: what was observed of the run.
        epochs: the epochs that every rank recorded, as `hvdgrade.evidence.evaluator.compare` returns them.
        profile: the thresholds.
        pass_seconds: the seconds that all ranks together need for one pass over the training set; None if
            they were not measured.
    """
    points, depends = profile.points["steps"], ["ran"]
    evidence = {e["epoch"]: {"examples": e["read"], "coverage": e["coverage"]} for e in epochs}
    unequal = [e for e in epochs if max(e["read"]) != min(e["read"])]
    short = [e for e in epochs if e["coverage"] < profile.min_coverage]
    if unequal:
        said = f"epoch {unequal[0]['epoch']}: examples by rank " + ", ".join(
            map(str, unequal[0]["read"])
        )
        help = "with unequal steps a rank waits for gradients that never come; use hvdlab's shard"
        return Check("steps", STEPS, "fail", points, said, help, evidence, depends)
    if foreign := [e for e in epochs if e["outside"]]:
        said = (
            f"in epoch {foreign[0]['epoch']} the ranks read {foreign[0]['outside']:,} examples that the "
            "training set does not have"
        )
        help = "give Batches the training images as they are, with no test images or others beside them"
        return Check("steps", STEPS, "fail", points, said, help, evidence, depends)
    if short:
        said = (
            f"in epoch {short[0]['epoch']} all ranks together read {short[0]['coverage']:.0%} of "
            f"the training set, at least {profile.min_coverage:.0%} are needed"
        )
        help = (
            "an epoch is one pass of all ranks together, len(batches) steps, and no batch may be left out; "
            "record after each pass, not more often"
        )
        if short[0]["coverage"] == 0 and short[0] is not epochs[0]:
            help = (
                "read each epoch by its number, batches.epoch(epoch): each has an order of its own. A Keras "
                "dataset begins anew in each fit: call fit once for all epochs, or make "
                "dataset(batches, first_epoch=epoch)"
            )
        return Check("steps", STEPS, "fail", points, said, help, evidence, depends)
    for before, epoch in zip(epochs, epochs[1:], strict=False) if pass_seconds else ():
        took = arrival(seen, epoch["epoch"]) - arrival(seen, before["epoch"])
        if took < profile.min_epoch_share * pass_seconds:
            said = (
                f"epoch {epoch['epoch']} took {took:.1f} s, and {seen.ranks} processes that train on this "
                f"machine need {pass_seconds:.1f} s for one pass: what was read was not trained on"
            )
            help = "an epoch is one pass of all ranks together; record after each pass"
            return Check("steps", STEPS, "fail", points, said, help, evidence, depends)
    said = f"{epochs[0]['read'][0]:,} examples a rank and epoch, together the whole training set"
    return Check("steps", STEPS, "pass", points, said, "", evidence, depends)


def arrival(seen: Observation, epoch: int) -> float:
    """Return the seconds from launch until the weights after `epoch` had arrived from all ranks."""
    return max(seen.of(rank)[epoch].seconds for rank in range(seen.ranks))


def meets(entry: dict, profile: Profile) -> bool:
    """Return whether both accuracies of one epoch reach their targets."""
    return (
        entry["train_accuracy"] >= profile.train_accuracy
        and entry["heldout_accuracy"] >= profile.heldout_accuracy
    )


def seconds_to_target(timeline: list[dict], profile: Profile) -> float | None:
    """Return the seconds from launch until the targets were reached, or None if they were not.

    The targets are reached with the first `profile.consecutive_epochs` consecutive epochs that meet both of
    them. The time is the one at which the last of these epochs arrived.
    """
    good: list[dict] = []
    for entry in timeline:
        follows = good and entry["epoch"] == good[-1]["epoch"] + 1
        good = (good if follows else []) + [entry] if meets(entry, profile) else []
        if len(good) == profile.consecutive_epochs:
            return max(entry["seconds"] for entry in good)
    return None


def check_targets(
    timeline: list[dict], reached: float | None, profile: Profile, budget: float
) -> Check:
    points, depends = profile.points["targets"], ["ran"]
    rule = (
        f"train {profile.train_accuracy:.2f} and held out {profile.heldout_accuracy:.2f} in "
        f"{profile.consecutive_epochs} consecutive epochs"
    )
    best = max(timeline, key=lambda entry: entry["heldout_accuracy"])
    evidence = {"budget_seconds": round(budget, 2), "seconds_to_target": reached}
    if reached is not None and reached <= budget:
        left = 1 - reached / budget
        said = f"{rule} after {reached:.1f} s of {budget:.1f} s ({left:.0%} left)"
        return Check("targets", TARGETS, "pass", points, said, "", evidence, depends)
    if reached is not None:
        said = f"{rule} only after {reached:.1f} s; the budget is {budget:.1f} s"
        return Check(
            *("targets", TARGETS, "partial", points, said, FASTER, evidence, depends), part=0.25
        )
    else:
        said = (
            f"{rule} not reached in {budget:.1f} s; best epoch {best['epoch']}: train "
            f"{best['train_accuracy']:.3f}, held out {best['heldout_accuracy']:.3f}"
        )
        help = (
            FASTER
            if any(meets(entry, profile) for entry in timeline)
            else (
                "look at accuracy against time: if it still rises, do more epochs in the time; if not, "
                "look at learning rate, its scaling with hvd.size(), and warm-up"
            )
        )
    return Check("targets", TARGETS, "fail", points, said, help, evidence, depends)
