"""From what was seen to a verdict: recomputes accuracies, then states one check after another.

The verdict is "pass" if every check that applies passes. A check whose base failed is skipped, with
the reason; nobody loses points twice for one mistake.
"""

import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hvdgrade.checks import (
    REPLICAS,
    SHARDS,
    STEPS,
    TARGETS,
    Check,
    check_ran,
    check_replicas,
    check_shards,
    check_steps,
    check_targets,
    imported_modules,
    seconds_to_target,
)
from hvdgrade.observe import Observation
from hvdgrade.profile import Profile


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


def evaluate(seen: Observation, profile: Profile, data: Path) -> dict:
    """Have `hvdgrade.evaluate` recompute everything in a fresh process; return its answer."""
    epochs: dict[int, list[str]] = {}
    for epoch in sorted({w.epoch for w in seen.weights}):
        of_ranks = [seen.of(rank).get(epoch) for rank in range(seen.ranks)]
        if all(of_ranks):
            epochs[epoch] = [str(weights.path) for weights in of_ranks]
    request = {
        "data": str(data),
        "seed": secrets.randbits(32),
        "train_sample": profile.train_sample,
        "epochs": epochs,
    }
    if not epochs:
        return {"epochs": [], "refused": []}
    try:
        process = subprocess.run(
            [sys.executable, "-m", "hvdgrade.evaluate"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=profile.evaluation_seconds,
        )
        if process.returncode:
            raise GraderFault(f"the evaluation failed: {process.stderr.strip()[-500:]}")
        return json.loads(process.stdout)
    except subprocess.TimeoutExpired:
        raise GraderFault(f"the evaluation took over {profile.evaluation_seconds:.0f} s") from None
    except json.JSONDecodeError:
        raise GraderFault("the evaluation gave no answer") from None


def judge(
    source: bytes, seen: Observation, evaluation: dict, profile: Profile, budget: float
) -> Judgement:
    """State every check. `evaluation` is what `evaluate` returned, `budget` is in seconds."""
    epochs = evaluation["epochs"]
    timeline = []
    for epoch in epochs:
        weights = [seen.of(rank)[epoch["epoch"]] for rank in range(seen.ranks)]
        timeline.append(
            {
                "seconds": round(max(w.seconds for w in weights), 2),
                "epoch": epoch["epoch"],
                "train_accuracy": epoch["train_accuracy"],
                "heldout_accuracy": epoch["heldout_accuracy"],
                "weights_sha256": weights[0].sha256,
            }
        )
    checks = [check_ran(source, seen, evaluation, profile)]
    ran = checks[0].state == "pass"

    def add(check: Callable[[], Check], id: str, title: str, depends_on: list[str]) -> None:
        if ran:
            checks.append(check())
        else:
            reason = "skipped: it needs weights of every rank, see above"
            points = profile.points[id]
            checks.append(Check(id, title, "skipped", points, reason, depends_on=depends_on))

    add(lambda: check_replicas(source, seen, epochs, profile), "replicas", REPLICAS, ["ran"])
    add(lambda: check_shards(seen, epochs, profile), "shards", SHARDS, ["ran"])
    add(lambda: check_steps(seen, epochs, profile), "steps", STEPS, ["ran"])
    reached = seconds_to_target(timeline, profile)
    add(lambda: check_targets(timeline, reached, profile, budget), "targets", TARGETS, ["ran"])
    return Judgement(checks, timeline, reached)
