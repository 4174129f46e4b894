"""The result document of one grading."""

import hashlib
import platform
from pathlib import Path

from hvdgrade import __version__
from hvdgrade.profiles import Profile
from hvdgrade.sandbox import tiers
from hvdgrade.submission.flags import unequal_work
from hvdgrade.submission.review import remarks
from hvdlab.system.hardware import usable_cores

SCHEMA = "hvdgrade/1"
CHECK_FIELDS = (
    *("id", "title", "state", "points", "max_points"),
    *("evidence", "rationale", "help", "depends_on"),
)


def hardware() -> str:
    """Processor and cores in words."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, {usable_cores()} cores"


def result(
    path: Path,
    source: bytes,
    profile: Profile,
    ranks: int,
    *,
    tier: str | None = None,
    synthetic: bool = False,
    status: str = "graded",
    reason: str = "",
    rounds: list | None = None,
    decisive=None,
    stages: dict[str, float] | None = None,
) -> dict:
    """The JSON document; `status` graded, not_gradable or infrastructure_error.

    `rounds` are those of `hvdgrade.grade`, and `decisive` is the one that stands for all; with a
    status other than graded they are left out. `stages`: the seconds of each stage, over all rounds.
    """
    rounds, stages = (rounds if rounds and status == "graded" else []), stages or {}
    one = decisive if rounds else None
    judgement = one.judgement if one else None
    document = {
        "schema": SCHEMA,
        "submission": {
            "id": path.name,
            "student": None,
            "sha256": hashlib.sha256(source).hexdigest() if source else None,
        },
        "grader": {
            "version": __version__,
            "profile": profile.name,
            "network": profile.network,
            "rules_sha256": profile.rules_sha256,
            "sandbox_tier": tier,
            "sandbox": tiers.describe(tier) if tier else None,
            "ranks": ranks,
            "hardware": hardware(),
            "data": ("synthetic CIFAR-10 twin" if synthetic else "CIFAR-10") if tier else None,
        },
        "status": status,
        "reason": reason,
        "verdict": judgement.verdict if judgement else None,
        "score": judgement.score if judgement else None,
        "max_score": judgement.max_score if judgement else None,
        "seconds_to_target": judgement.seconds_to_target if judgement else None,
        "budget": budget(one, profile) if one else None,
        "targets": {
            "train_accuracy": profile.train_accuracy,
            "heldout_accuracy": profile.heldout_accuracy,
            "consecutive_epochs": profile.consecutive_epochs,
        },
        "runs": [
            {
                "verdict": each.judgement.verdict,
                "seconds_to_target": each.judgement.seconds_to_target,
                "budget": round(each.budget, 2),
            }
            for each in rounds
        ],
        "checks": [],
        "timeline": judgement.timeline if judgement else [],
        **(remarks(source) if source else {"hints": [], "flags": []}),
        "resources": {},
        "output": one.seen.output[-20_000:] if one else "",
    }
    for check in judgement.checks if judgement else []:
        entry = {name: getattr(check, name) for name in CHECK_FIELDS}
        document["checks"].append(entry)
    if one:
        seen = one.seen
        document["flags"] += unequal_work(seen.computed, ranks)
        document["resources"] = {
            "wall": round(seen.seconds, 2),
            "cpu": round(seen.cpu_seconds, 2),
            "computed": [round(seen.computed.get(rank, 0.0), 2) for rank in range(ranks)],
            "max_rss": seen.max_rss_bytes,
            "devices": seen.devices,
            "bytes_on_wire": seen.bytes_on_wire,
            "exit": seen.exit_code,
            "stop_cause": seen.stop_cause,
            "survivors": seen.survivors,
            "grading_wall": round(sum(stages.values()), 2),
            "stages": {stage: round(seconds, 2) for stage, seconds in stages.items()},
        }
    return document


def budget(one, profile: Profile) -> dict:
    """The seconds that a round had, and what they follow from."""
    found = {"seconds": round(one.budget, 2)}
    if calibration := one.calibration:
        found |= {
            "framework": calibration.framework,
            "startup_seconds": round(calibration.startup_seconds, 2),
            "serial_images_per_second": [round(r, 1) for r in calibration.images_per_second],
            "serial_epochs": profile.budget_serial_epochs,
        }
    return found
