"""The result document of one grading."""

import hashlib
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hvdgrade import __version__
from hvdgrade.evidence.observation import Observation, OtherWork
from hvdgrade.judge.check import Check
from hvdgrade.judge.measured_flags import measured_flags
from hvdgrade.judge.verdict import Round
from hvdgrade.profiles import Profile
from hvdgrade.result_document import (
    SCHEMA,
    BudgetPart,
    HintPart,
    OtherWorkPart,
    ResourcesPart,
    ResultDocument,
)
from hvdgrade.sandbox import tiers
from hvdgrade.submission.review import Review
from hvdlab.mistakes import CATALOGUE, Finding
from hvdlab.system.hardware import cpu_facts, usable_cores

CHECK_FIELDS = (
    *("id", "title", "state", "points", "max_points"),
    *("evidence", "rationale", "help", "depends_on"),
)


def hardware() -> str:
    """Processor and cores in words."""
    model = cpu_facts().get("model name") or platform.processor() or platform.machine()
    return f"{model}, {usable_cores()} cores"


@dataclass(frozen=True)
class Graded:
    """A submission after grading: all that the result document is made from.

    Attributes:
        path: the script, or the folder that holds it. Its name identifies the submission.
        rules: the thresholds.
        ranks: number of processes.
        source: the bytes of the script; empty if it could not be read.
        review: what the source shows.
        mistakes: what `hvdlab check` found in it.
        status: "graded", "not_gradable" or "infrastructure_error".
        reason: why there is no verdict, in one sentence; empty for a graded submission.
        grade_again: whether the machine is the reason, so that another grading may give a verdict.
        tier: the isolation level; None if grading ended before one was chosen.
        synthetic: whether the data set was the synthetic one.
        rounds: the rounds of a graded submission.
        decisive: the round that decides the verdict.
        stages: seconds of each stage, over all rounds.
    """

    path: Path
    rules: Profile
    ranks: int
    source: bytes = b""
    review: Review = Review()
    mistakes: list[Finding] = field(default_factory=list)
    status: str = "graded"
    reason: str = ""
    grade_again: bool = False
    tier: str | None = None
    synthetic: bool = False
    rounds: list[Round] = field(default_factory=list)
    decisive: Round | None = None
    stages: dict[str, float] = field(default_factory=dict)


def result(graded: Graded) -> ResultDocument:
    """Return the result document, which can be written as JSON."""
    rules, decisive = graded.rules, graded.decisive if graded.status == "graded" else None
    judgement = decisive.judgement if decisive else None
    document = {
        "schema": SCHEMA,
        "submission": {
            "id": os.path.basename(os.path.abspath(graded.path)),
            "student": None,
            "sha256": hashlib.sha256(graded.source).hexdigest() if graded.source else None,
        },
        "grader": {
            "version": __version__,
            "profile": rules.name,
            "network": rules.network,
            "rules_sha256": rules.rules_sha256,
            "sandbox_tier": graded.tier,
            "sandbox": tiers.describe(graded.tier) if graded.tier else None,
            "ranks": graded.ranks,
            "hardware": hardware(),
            "data": data_set(graded) if graded.tier else None,
        },
        "status": graded.status,
        "reason": graded.reason,
        "grade_again": graded.grade_again,
        "verdict": judgement.verdict if judgement else None,
        "score": judgement.score if judgement else None,
        "max_score": judgement.max_score if judgement else None,
        "seconds_to_target": judgement.seconds_to_target if judgement else None,
        "budget": budget(decisive, rules) if decisive else None,
        "targets": {
            "train_accuracy": rules.train_accuracy,
            "heldout_accuracy": rules.heldout_accuracy,
            "consecutive_epochs": rules.consecutive_epochs,
        },
        "runs": [
            {
                "verdict": each.judgement.verdict,
                "seconds_to_target": each.judgement.seconds_to_target,
                "budget": round(each.budget, 2),
            }
            for each in (graded.rounds if decisive else [])
        ],
        "checks": [],
        "timeline": [asdict(entry) for entry in judgement.timeline] if judgement else [],
        "hints": [],
        "flags": list(graded.review.flags),
        "resources": {},
        "output": decisive.evidence.observation.output[-20_000:] if decisive else "",
    }
    if decisive:
        seen = decisive.evidence.observation
        document["checks"] = [
            {name: getattr(check, name) for name in CHECK_FIELDS} for check in judgement.checks
        ]
        found = [*graded.review.hints, *graded.mistakes]
        document["hints"] = hints(found, judgement.checks)
        document["flags"] += measured_flags(decisive.evidence, rules)
        document["resources"] = resources(seen, graded.stages)
    return document


def hints(found: list[Finding], checks: list[Check]) -> list[HintPart]:
    """Return the hints of a report: one per mistake that the measurements leave possible, by line."""
    passed = {check.id for check in checks if check.state == "pass"}
    possible = {one.id: one for one in found if not CATALOGUE[one.id].refuted_by & passed}
    return [
        {"line": one.line, "topic": one.title, "text": f"{one.seen} {one.fix}", "mistake": one.id}
        for one in sorted(possible.values(), key=lambda one: one.line or 0)
    ]


def data_set(graded: Graded) -> str:
    return "synthetic CIFAR-10" if graded.synthetic else "CIFAR-10"


def resources(seen: Observation, stages: dict[str, float]) -> ResourcesPart:
    """Return what the run used; `stages` has the seconds of each stage of the grading."""
    return {
        "wall": round(seen.seconds, 2),
        "cpu": round(seen.cpu_seconds, 2),
        "computed": [round(seen.computed.get(rank, 0.0), 2) for rank in range(seen.ranks)],
        "max_rss": seen.max_rss_bytes,
        "devices": seen.devices,
        "bytes_on_wire": seen.bytes_on_wire,
        "exit": seen.exit_code,
        "stop_cause": seen.stop_cause,
        "survivors": seen.survivors,
        "other_work": other_work(seen.other_work),
        "grading_wall": round(sum(stages.values()), 2),
        "stages": {stage: round(seconds, 2) for stage, seconds in stages.items()},
    }


def budget(decisive: Round, rules: Profile) -> BudgetPart:
    """The seconds that a round had, and what they follow from."""
    found = {"seconds": round(decisive.budget, 2)}
    if calibration := decisive.calibration:
        found |= {
            "framework": calibration.framework,
            "startup_seconds": round(calibration.startup_seconds, 2),
            "serial_images_per_second": [round(r, 1) for r in calibration.images_per_second],
            "serial_epochs": rules.budget_serial_epochs,
            "other_work": other_work(calibration.other_work),
        }
    return found


def other_work(measured: OtherWork) -> OtherWorkPart:
    """The processor time that other programs took: seconds, fraction, and why it is not known."""
    if measured.fraction is None:
        return {"seconds": None, "fraction": None, "unknown": measured.unknown}
    return {"seconds": round(measured.seconds, 2), "fraction": round(measured.fraction, 4)}
