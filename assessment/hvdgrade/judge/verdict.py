"""Turn the observation of a run into a verdict: have the weights compared, then evaluate the checks in order.

The verdict is "pass" if every check that applies passes. A check that depends on a failed check is skipped,
and its rationale names the failed check, so that the report states one mistake only once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from hvdgrade.evidence.observation import Observation, Probe
from hvdgrade.judge import parallel_checks, traffic
from hvdgrade.judge.check import Check
from hvdgrade.judge.run_checks import (
    SHARDS,
    STEPS,
    TARGETS,
    arrival,
    check_ran,
    check_shards,
    check_steps,
    check_targets,
    seconds_to_target,
)
from hvdgrade.profiles import Profile
from hvdgrade.submission.script import imported_modules

UNKNOWN_BATCH = 128


@dataclass
class Judgement:
    """The checks of a run, the verdict and score that follow from them, and the timeline of the run."""

    checks: list[Check]
    timeline: list[dict]
    seconds_to_target: float | None

    @property
    def verdict(self) -> str:
        applies = [check for check in self.checks if check.max_points]
        return "pass" if all(check.state == "pass" for check in applies) else "fail"

    @property
    def score(self) -> int:
        return sum(check.points for check in self.checks)

    @property
    def max_score(self) -> int:
        return sum(check.max_points for check in self.checks)


def framework(source: bytes) -> str:
    """Return "torch" or "keras": the framework that the time budget is calibrated with.

    If the imports do not decide, the function returns "torch", the faster one.
    """
    modules = imported_modules(source)
    roots = {name.split(".")[0] for name in modules}
    keras = roots & {"keras", "tensorflow", "tf_keras"} or any("hvdlab.keras" in m for m in modules)
    return "keras" if keras and "torch" not in roots else "torch"


def batch_size(epochs: list[dict]) -> int:
    """Return how many images a batch of rank 0 has, as far as its record shows it.

    The last batch of an epoch may have fewer images. Therefore the function uses the recorded batch size if
    it agrees with the number of steps, and otherwise divides the images read by the steps. If the record has
    no number of steps, it returns UNKNOWN_BATCH.
    """
    read, steps, said = epochs[0]["read"][0], epochs[0]["steps"], epochs[0]["batch_size"]
    if said and ceil(read / said) == steps:
        return min(said, max(1, read))
    return max(1, ceil(read / steps)) if steps else UNKNOWN_BATCH


def worth_probing(source: bytes, seen: Observation, evaluation: dict, profile: Profile) -> bool:
    """Return whether a probe is needed to find out how the ranks work together.

    It is not needed with a single rank, or if the graded run has already failed one of the checks on which
    the probe's checks depend.
    """
    if seen.ranks == 1 or check_ran(source, seen, evaluation, profile).state != "pass":
        return False
    return all(
        check(source, seen, evaluation["epochs"], profile).state != "fail"
        for check in (parallel_checks.check_replicas, parallel_checks.check_exchange)
    )


def judge(
    source: bytes,
    seen: Observation,
    evaluation: dict,
    probe: Probe | None,
    found: dict,
    profile: Profile,
    budget: float,
    pass_seconds: float | None = None,
) -> Judgement:
    """Evaluate every check and return the judgement.

    Args:
        source: the bytes of the submission.
        seen: what was observed of the run.
        evaluation: the first value that `recompute` returned.
        probe: the probe; None if none was needed.
        found: the second value that `recompute` returned, the results of the probe.
        profile: the thresholds.
        budget: the time budget in seconds.
        pass_seconds: the seconds that all ranks together need for one pass over the training set, as in
            `check_steps`; None if they were not measured.
    """
    epochs, ranks = evaluation["epochs"], seen.ranks
    timeline = course(seen, epochs)
    reached = seconds_to_target(timeline, profile)
    checks = {"ran": check_ran(source, seen, evaluation, profile)}

    def add(id: str, title: str, depends_on: list[str], check: Callable[[], Check]) -> None:
        failed = [checks[base] for base in depends_on if checks[base].state in ("fail", "skipped")]
        # A check that does not apply (0 points) cannot make another check be skipped.
        failed = [base for base in failed if base.max_points]
        if not failed:
            checks[id] = check()
        else:
            reason = f"skipped: it builds on '{failed[0].title}', see above"
            points = profile.points[id]
            checks[id] = Check(id, title, "skipped", points, reason, depends_on=depends_on)

    ran, together = ["ran"], ["ran", "replicas", "exchange"]
    of_run, of_probe = (source, seen, epochs, profile), (source, probe, found, ranks, profile)
    add("replicas", parallel_checks.REPLICAS, ran, lambda: parallel_checks.check_replicas(*of_run))
    add("exchange", parallel_checks.EXCHANGE, ran, lambda: parallel_checks.check_exchange(*of_run))
    add("flow", parallel_checks.FLOW, together, lambda: parallel_checks.check_flow(*of_probe))
    add(
        *("equivalence", parallel_checks.EQUIVALENCE, together),
        lambda: parallel_checks.check_equivalence(
            *of_probe, probe and traffic.exchange_drop(seen, epochs, probe, profile)
        ),
    )
    add("shards", SHARDS, ran, lambda: check_shards(seen, epochs, profile))
    add("steps", STEPS, ran, lambda: check_steps(seen, epochs, profile, pass_seconds))
    add("targets", TARGETS, ran, lambda: check_targets(timeline, reached, profile, budget))
    return Judgement(list(checks.values()), timeline, reached)


def course(seen: Observation, epochs: list[dict]) -> list[dict]:
    """Return the timeline of the result, with one entry per epoch that every rank recorded."""
    timeline = []
    for epoch in epochs:
        weights = [seen.of(rank)[epoch["epoch"]] for rank in range(seen.ranks)]
        wire = [w.bytes_on_wire for w in weights]
        timeline.append(
            {
                "seconds": round(arrival(seen, epoch["epoch"]), 2),
                "epoch": epoch["epoch"],
                "train_accuracy": epoch["train_accuracy"],
                "heldout_accuracy": epoch["heldout_accuracy"],
                "weights_sha256": weights[0].sha256,
                "bytes_on_wire": None if None in wire else max(wire),
                "steps": epoch["steps"],
            }
        )
    return timeline


def died_at_its_end(seen: Observation, profile: Profile) -> bool:
    """Return whether a signal ended the run after every rank had recorded its epochs.

    About once in some hundred runs, a correct script aborts while Python exits, for example because of the
    threads of PyTorch's Gloo. Such a run is repeated.
    """
    recorded = {len(seen.of(rank)) for rank in range(seen.ranks)}
    enough = len(recorded) == 1 and min(recorded) >= profile.consecutive_epochs
    return seen.stop_cause == "killed" and enough


def near_a_threshold(judgement: Judgement, profile: Profile, budget: float) -> bool:
    """Return whether the verdict is closer to a threshold than the margins of the profile.

    This is so if all other checks pass, and slightly stricter and slightly looser thresholds lead to
    different verdicts. The run is then repeated.
    """
    if any(c.state != "pass" for c in judgement.checks if c.max_points and c.id != "targets"):
        return False

    def passes(sign: int) -> bool:
        moved = replace(
            profile,
            train_accuracy=profile.train_accuracy + sign * profile.accuracy_margin,
            heldout_accuracy=profile.heldout_accuracy + sign * profile.accuracy_margin,
        )
        reached = seconds_to_target(judgement.timeline, moved)
        return reached is not None and reached <= budget * (1 - sign * profile.time_margin)

    return passes(+1) != passes(-1)
