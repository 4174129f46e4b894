"""Decide whether a round says something about the script, or only that other programs used the machine.

A run that reaches its target in time passes, whatever else the machine did. A round in which only time was
lacking is not judged if other programs took more than `max_other_work` of the processor time: neither pass
nor fail would be justified. It does not matter whether they ran during the run or during the calibration.
The budget follows from the speed of the calibration without other programs, and this correction is only an
estimate.
"""

from hvdgrade import HvdgradeError
from hvdgrade.evidence.observation import Observation, OtherWork
from hvdgrade.judge.verdict import Round
from hvdgrade.profiles import Profile


class MachineBusy(HvdgradeError):
    """Other programs used the machine in each round; the submission is not at fault, and is not judged."""

    def __init__(self, rounds: list[Round]) -> None:
        taken = ", ".join(f"{most_other_work(each):.0%}" for each in rounds)
        super().__init__(
            f"the machine was busy: the script was too slow in {len(rounds)} rounds, while other programs "
            f"took {taken} of the processor time. Grade it again when no other programs run."
        )


def machine_was_busy(round: Round, rules: Profile) -> bool:
    """Return whether a round must not be judged, because other programs may have made it late."""
    return lacked_only_time(round) and most_other_work(round) > rules.max_other_work


def lacked_only_time(round: Round) -> bool:
    """Return whether a check failed, and each check that failed may have failed because time was lacking."""
    checks = [check for check in round.judgement.checks if check.max_points]
    failed = {check.id for check in checks if check.state in ("fail", "partial")}
    return bool(failed) and failed <= late_checks(round)


def late_checks(round: Round) -> set[str]:
    """Return the checks that may fail because time was lacking."""
    found, seen, probe = set(), round.evidence.observation, round.evidence.probe
    # A script that ended by itself without reaching the target would not have reached it later either.
    if round.judgement.seconds_to_target is not None or seen.stop_cause == "timeout":
        found.add("targets")
    if seen.stop_cause == "timeout" and not (seen.refused or round.evidence.refused):
        found.add("ran")
    if stopped_probe(round) and not probe.refused:
        found |= {"flow", "equivalence"}
    return found


def stopped_probe(round: Round) -> Observation | None:
    """Return the run of the probe that the grader ended because its time was over, or None."""
    failed = round.evidence.probe.probe.failed if round.evidence.probe else None
    return failed if failed and failed.stop_cause == "timeout" else None


def most_other_work(round: Round) -> float:
    """Return the largest fraction of the processor time that others took in a part of the round: 0..1.

    The parts are the calibration, the graded run, and a probe that did not end in time. What could not be
    measured counts as 0.
    """
    parts: list[OtherWork] = [round.evidence.observation.other_work]
    if round.calibration:
        parts.append(round.calibration.other_work)
    if stopped := stopped_probe(round):
        parts.append(stopped.other_work)
    return max(part.fraction or 0.0 for part in parts)
