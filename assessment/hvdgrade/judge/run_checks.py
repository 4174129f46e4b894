"""Check whether the graded run came to its end and every rank recorded its epochs."""

from hvdgrade.evidence.observation import Observation
from hvdgrade.judge.check import Case, Finding, check, last_error, likely, where_they_wait

LIMITS = {
    "out_of_memory": "it needed more memory than it was given",
    "too_many_processes": "it started more processes than it may",
    "disk_full": "it wrote more to the disk than it may",
}
RECORD_THE_NETWORK = (
    "let Recorder write the weights of assessment_network(), unchanged, after every epoch"
)


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
            likely(
                "a crash in a library below Python: read the end of the output",
                "too little memory: use a smaller batch",
            ),
        )
    if seen.stop_cause in LIMITS:
        return (
            f"it was ended after {seconds}: {LIMITS[seen.stop_cause]}; {epochs}",
            likely(
                "a loop allocates, starts or writes more in each step",
                "the batch is too large",
            ),
        )
    if seen.stop_cause == "took_more_cores":
        return (
            f"it was ended after {seconds}: it gave itself cores that it was not given",
            likely(
                "the script or a library sets the affinity of its processes: leave that out, because other "
                "submissions are graded on the other cores",
                "it starts its own mpirun or horovodrun with a binding of processes",
            ),
        )
    if seen.stop_cause == "output_flood":
        return (
            f"it printed {seen.output_bytes:,} bytes within {seen.seconds:.0f} s and was ended",
            likely(
                "it prints in each step: print once per epoch, on rank 0 only", "a loop never ends"
            ),
        )
    causes = likely(
        "the ranks make unequal numbers of steps",
        "only some ranks make a collective call, for example under 'if rank == 0'",
    )
    places = where_they_wait(seen)
    return (  # "hang"
        f"no rank did any work for {stall_seconds:.0f} s; {epochs}",
        f"Each rank waits for another. {places}. {causes}" if places else causes,
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
        help = likely(
            "recorder.epoch_end(epoch) is not called on every rank after each epoch (Keras: the callback)",
            "the script ends, or is ended, before its first epoch is over",
        )
        if seen.stop_cause == "timeout" and where_they_wait(seen):
            help = f"{where_they_wait(seen)}. {help}"
        return rationale, help
    if min(recorded) == 0:
        return epochs, likely(
            "the recorder is under 'if rank == 0': every rank records its own weights",
            "a rank ends before its first epoch is over: read its output",
        )
    if min(recorded) < needed:
        return f"{epochs}, at least {needed} are needed", likely(
            "the script trains for too few epochs", "its epochs take too long for the budget"
        )
    if len(common) < needed or before_the_last(seen) - common:
        return (
            f"the ranks recorded different epochs: {len(common)} of them came from every rank",
            likely(
                "recorder.epoch_end is given a number that differs between the ranks: give it the number of "
                "the epoch",
                "a rank stops earlier than the others, for example because of its own accuracy",
            ),
        )
    return None


def before_the_last(seen: Observation) -> set[int]:
    """Return the epochs that at least one rank recorded, without the latest one.

    The run may have ended when only some of the ranks had recorded the latest epoch.
    """
    epochs = {weights.epoch for weights in seen.weights}
    return epochs - {max(epochs)}
