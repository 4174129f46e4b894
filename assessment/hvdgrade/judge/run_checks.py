"""Check whether the graded run came to its end and every rank recorded its epochs."""

from hvdgrade.evidence.observation import Observation
from hvdgrade.evidence.weights_file import DIVERGED
from hvdgrade.judge import run_causes as causes
from hvdgrade.judge.check import Case, Finding, check, last_error, where_they_wait
from hvdgrade.judge.parallel_causes import likely

LIMITS = {
    "out_of_memory": "it needed more memory than it was given",
    "too_many_processes": "it started more processes than it may",
    "disk_full": "it wrote more to the disk than it may",
}
RECORD_THE_NETWORK = (
    "let Recorder write the weights of assessment_network(), unchanged, after every epoch"
)

LEARN_SLOWER = "use a smaller learning rate, or a longer warmup, and look at the loss of each step"


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
        rationale, help = stopped(case, epochs)
    elif refused:
        diverged = refused[0].endswith(DIVERGED)
        rationale, help = refused[0], LEARN_SLOWER if diverged else RECORD_THE_NETWORK
    elif problem := too_few_epochs(case, recorded, epochs):
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


def stopped(case: Case, epochs: str) -> tuple[str, str]:
    """Return (rationale, help) for a run that did not end by itself with exit code 0."""
    seen = case.evidence.observation
    seconds = f"{seen.seconds:.1f} s"
    if seen.stop_cause == "crashed":
        return (
            f"the run ended with exit code {seen.exit_code} after {seconds}; {epochs}",
            last_error(seen.output) or "run it yourself with mpirun and read its error message",
        )
    if seen.stop_cause == "killed":
        return (
            f"the run was ended by signal {(seen.exit_code or 128) - 128} after {seconds}",
            likely(case, *causes.KILLED),
        )
    if seen.stop_cause in LIMITS:
        return (
            f"it was ended after {seconds}: {LIMITS[seen.stop_cause]}; {epochs}",
            likely(case, *causes.LIMIT),
        )
    if seen.stop_cause == "took_more_cores":
        return (
            f"it was ended after {seconds}: it gave itself cores that it was not given",
            likely(case, *causes.OTHER_CORES),
        )
    if seen.stop_cause == "output_flood":
        return (
            f"it printed {seen.output_bytes:,} bytes within {seen.seconds:.0f} s and was ended",
            likely(case, *causes.FLOOD),
        )
    help, places = likely(case, *causes.HANG), where_they_wait(seen)
    return (  # "hang"
        f"no rank did any work for {case.rules.stall_seconds:.0f} s; {epochs}",
        f"Each rank waits for another. {places}. {help}" if places else help,
    )


def too_few_epochs(case: Case, recorded: list[int], epochs: str) -> tuple[str, str] | None:
    """Return (rationale, help) if the ranks did not record enough epochs in common, else None."""
    seen, needed = case.evidence.observation, case.rules.consecutive_epochs
    common = set.intersection(*(set(seen.of(rank)) for rank in range(seen.ranks)))
    if max(recorded) == 0:
        rationale = (
            f"it ended by itself after {seen.seconds:.1f} s and recorded nothing"
            if seen.stop_cause == "ended"
            else f"no epoch was recorded within the {seen.seconds:.0f} s it was given"
        )
        help = likely(case, *causes.NOTHING_RECORDED)
        if seen.stop_cause == "timeout" and where_they_wait(seen):
            help = f"{where_they_wait(seen)}. {help}"
        return rationale, help
    if min(recorded) == 0:
        return epochs, likely(case, *causes.RANK_RECORDED_NOTHING)
    if min(recorded) < needed:
        return f"{epochs}, at least {needed} are needed", likely(case, *causes.FEW_EPOCHS)
    if len(common) < needed or before_the_last(seen) - common:
        return (
            f"the ranks recorded different epochs: {len(common)} of them came from every rank",
            likely(case, *causes.OTHER_EPOCHS),
        )
    return None


def before_the_last(seen: Observation) -> set[int]:
    """Return the epochs that at least one rank recorded, without the latest one.

    The run may have ended when only some of the ranks had recorded the latest epoch.
    """
    epochs = {weights.epoch for weights in seen.weights}
    return epochs - {max(epochs)}
