"""From what was seen to a verdict: has the weights compared, then states one check after another.

The verdict is "pass" if every check that applies passes. A check whose base failed is skipped, with
the reason; nobody loses points twice for one mistake.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from hvdgrade import parallel
from hvdgrade.checks import (
    SHARDS,
    STEPS,
    TARGETS,
    Check,
    arrival,
    check_ran,
    check_shards,
    check_steps,
    check_targets,
    imported_modules,
    seconds_to_target,
)
from hvdgrade.observe import Observation
from hvdgrade.probe import Probe
from hvdgrade.profile import Profile

UNKNOWN_BATCH = 128
EPOCH_SECONDS = 15.0  # that the evaluation may take for each epoch beyond its own limit


class GraderFault(Exception):
    """Something went wrong on the grader's side: never the submission's zero."""


@dataclass
class Judgement:
    """The checks, what they say together, and the course of the run."""

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
    """ "torch" or "keras": whose speed the budget is calibrated with. In doubt the faster one."""
    modules = imported_modules(source)
    roots = {name.split(".")[0] for name in modules}
    keras = roots & {"keras", "tensorflow", "tf_keras"} or any("hvdlab.keras" in m for m in modules)
    return "keras" if keras and "torch" not in roots else "torch"


def compare(seen: Observation, profile: Profile, examples: int) -> dict:
    """Compare the ranks in each recorded epoch: {"epochs": [...], "refused": [...]}.

    `examples`: size of the training set that the run was given.
    """
    epochs: dict[int, list[str]] = {}
    for epoch in sorted({w.epoch for w in seen.weights}):
        of_ranks = [seen.of(rank).get(epoch) for rank in range(seen.ranks)]
        if all(of_ranks):
            epochs[epoch] = [str(weights.path) for weights in of_ranks]
    if not epochs:
        return {"epochs": [], "refused": []}
    request = {"epochs": epochs, "examples": examples, "network": profile.network}
    return ask(request, profile, len(epochs))


def recompute(
    evaluation: dict, probe: Probe | None, profile: Profile, data: Path, seed: int
) -> tuple[dict, dict]:
    """The evaluation that `compare` gave, with each epoch's accuracies, and what the probe says.

    The latter is empty without a probe, or if one of its runs did not come through.
    """
    epochs, runs = evaluation["epochs"], {} if probe is None or probe.failed else probe.runs
    if not epochs:
        return evaluation, {}
    request = {
        "data": str(data),
        "seed": seed,
        "network": profile.network,
        "train_sample": profile.train_sample,
        "weights": [epoch["weights"] for epoch in epochs],
        "probe": runs,
        "batch_size": probe.batch_size if probe else 0,
    }
    answer = ask(request, profile, len(epochs))
    epochs = [one | two for one, two in zip(epochs, answer["accuracies"], strict=True)]
    return {**evaluation, "epochs": epochs}, answer.get("probe", {})


def examine(probe: Probe, profile: Profile, data: Path, seed: int) -> dict:
    """What a probe says by itself; empty if one of its runs did not come through."""
    if probe.failed:
        return {}
    request = {
        "data": str(data),
        "seed": seed,
        "network": profile.network,
        "train_sample": 0,
        "weights": [],
        "probe": probe.runs,
        "batch_size": probe.batch_size,
    }
    return ask(request, profile, 0).get("probe", {})


def ask(request: dict, profile: Profile, epochs: int) -> dict:
    """The answer of `hvdgrade.evaluate`, in a fresh process. Raises GraderFault."""
    seconds = profile.evaluation_seconds + EPOCH_SECONDS * epochs
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-m", "hvdgrade.evaluate"],  # no module from a student's folder
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if process.returncode:
            raise GraderFault(f"the evaluation failed: {process.stderr.strip()[-500:]}")
        return json.loads(process.stdout)
    except subprocess.TimeoutExpired:
        raise GraderFault(f"the evaluation took over {seconds:.0f} s") from None
    except json.JSONDecodeError:
        raise GraderFault("the evaluation gave no answer") from None


def batch_size(epochs: list[dict]) -> int:
    """Images in a batch of rank 0, as far as its record tells: the last one of an epoch may have fewer."""
    read, steps, said = epochs[0]["read"][0], epochs[0]["steps"], epochs[0]["batch_size"]
    if said and ceil(read / said) == steps:
        return min(said, max(1, read))
    return max(1, ceil(read / steps)) if steps else UNKNOWN_BATCH


def worth_probing(source: bytes, seen: Observation, evaluation: dict, profile: Profile) -> bool:
    """Whether the graded run leaves the question open how its ranks work together."""
    if seen.ranks == 1 or check_ran(source, seen, evaluation, profile).state != "pass":
        return False
    return all(
        check(source, seen, evaluation["epochs"], profile).state != "fail"
        for check in (parallel.check_replicas, parallel.check_exchange)
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
    """State every check.

    Args:
        evaluation, found: what `recompute` returned.
        probe: None where it was not worth it.
        budget: seconds.
        pass_seconds: as `check_steps` takes it.
    """
    epochs, ranks = evaluation["epochs"], seen.ranks
    timeline = course(seen, epochs)
    reached = seconds_to_target(timeline, profile)
    checks = {"ran": check_ran(source, seen, evaluation, profile)}

    def add(id: str, title: str, depends_on: list[str], check: Callable[[], Check]) -> None:
        failed = [checks[base] for base in depends_on if checks[base].state in ("fail", "skipped")]
        failed = [base for base in failed if base.max_points]  # one that does not apply is no base
        if not failed:
            checks[id] = check()
        else:
            reason = f"skipped: it builds on '{failed[0].title}', see above"
            points = profile.points[id]
            checks[id] = Check(id, title, "skipped", points, reason, depends_on=depends_on)

    ran, together = ["ran"], ["ran", "replicas", "exchange"]
    of_run, of_probe = (source, seen, epochs, profile), (source, probe, found, ranks, profile)
    add("replicas", parallel.REPLICAS, ran, lambda: parallel.check_replicas(*of_run))
    add("exchange", parallel.EXCHANGE, ran, lambda: parallel.check_exchange(*of_run))
    add("flow", parallel.FLOW, together, lambda: parallel.check_flow(*of_probe))
    add(
        *("equivalence", parallel.EQUIVALENCE, together),
        lambda: parallel.check_equivalence(
            *of_probe, probe and parallel.exchange_drop(seen, epochs, probe, profile)
        ),
    )
    add("shards", SHARDS, ran, lambda: check_shards(seen, epochs, profile))
    add("steps", STEPS, ran, lambda: check_steps(seen, epochs, profile, pass_seconds))
    add("targets", TARGETS, ran, lambda: check_targets(timeline, reached, profile, budget))
    return Judgement(list(checks.values()), timeline, reached)


def course(seen: Observation, epochs: list[dict]) -> list[dict]:
    """The timeline of the result: an entry each epoch that every rank recorded."""
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
    """Whether a run was ended by a signal after its epochs had arrived from every rank.

    Once in some hundred runs a right script aborts while Python exits, as with threads of PyTorch's Gloo:
    the run is repeated.
    """
    recorded = {len(seen.of(rank)) for rank in range(seen.ranks)}
    enough = len(recorded) == 1 and min(recorded) >= profile.consecutive_epochs
    return seen.stop_cause == "killed" and enough


def near_a_threshold(judgement: Judgement, profile: Profile, budget: float) -> bool:
    """Whether the verdict hangs on less than the margins of the profile: then the run is repeated.

    It does where all else passes, and somewhat harder and somewhat easier rules disagree.
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
