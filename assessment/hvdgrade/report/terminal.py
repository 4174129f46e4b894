"""The result of a grading: one JSON document, and the same for a reader in a terminal."""

import hashlib
import platform
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hvdgrade import __version__
from hvdgrade.output.text import printable
from hvdgrade.profiles import Profile
from hvdgrade.run.rank_devices import in_words
from hvdgrade.sandbox import tiers
from hvdgrade.submission.flags import unequal_work
from hvdgrade.submission.review import remarks
from hvdlab.system.hardware import usable_cores

SCHEMA = "hvdgrade/1"
CHECK_FIELDS = (
    *("id", "title", "state", "points", "max_points"),
    *("evidence", "rationale", "help", "depends_on"),
)
FACES = {
    "pass": "[green]:)[/]",
    "partial": "[yellow]:/[/]",
    "fail": "[red]:([/]",
    "skipped": "[yellow]:|[/]",
    "error": "[red]??[/]",
}
OUTPUT_LINES = 12


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


def show(document: dict, console: Console) -> None:
    """Print the document: verdict first, one line a check, what to do, the course of the run."""
    grader = document["grader"]
    if "synthetic" in (grader["data"] or ""):
        console.print("[yellow]Graded on SYNTHETIC data, not on CIFAR-10: a practice run.[/]")
    ranks = "1 rank" if grader["ranks"] == 1 else f"{grader['ranks']} ranks"
    about = f"{document['submission']['id']}, {ranks}, profile {grader['profile']}"
    if grader["sandbox_tier"]:  # else nothing was run
        about += f", {grader['data']}, {grader['hardware']}, sandbox {grader['sandbox_tier']}"
    console.print(f"[dim]{escape(printable(about))}[/]", highlight=False)
    if document["status"] != "graded":
        title = {
            "not_gradable": "NOT GRADABLE (no attempt lost)",
            "infrastructure_error": "GRADER FAULT (not the submission's)",
        }[document["status"]]
        reason = escape(printable(document["reason"]))
        console.print(f"[bold yellow]{title}[/] {reason}", highlight=False)
        return

    passed = document["verdict"] == "pass"
    colour = "green" if passed else "red"
    console.print(
        f"[bold {colour}]{document['verdict'].upper()}[/]  "
        f"{document['score']} of {document['max_score']} points",
        highlight=False,
    )
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in document["checks"]:
        points = f"{check['points']}/{check['max_points']}"
        table.add_row(FACES[check["state"]], points, check["title"], escape(check["rationale"]))
        if check["help"]:
            table.add_row("", "", "", f"[yellow]-> {escape(check['help'])}[/]")
    console.print(table, highlight=False)

    if document["timeline"]:
        course = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
        for title in ("epoch", "seconds", "train", "held out"):
            course.add_column(title, justify="right")
        for entry in document["timeline"]:
            course.add_row(
                str(entry["epoch"]),
                f"{entry['seconds']:.1f}",
                f"{entry['train_accuracy']:.3f}",
                f"{entry['heldout_accuracy']:.3f}",
            )
        console.print(course, highlight=False)
    if devices := document["resources"].get("devices"):
        console.print(f"[dim]Devices: {escape(printable(in_words(devices)))}[/]", highlight=False)
    budget = document["budget"]
    if len(document["runs"]) > 1:
        each = ", ".join(
            f"{run['verdict']} ({run['seconds_to_target'] or '-'} of {run['budget']} s)"
            for run in document["runs"]
        )
        console.print(f"It was run again, to be sure: {each}. The majority decides.")
    if "framework" in budget:
        rates = " ".join(f"{rate:,.0f}" for rate in budget["serial_images_per_second"])
        console.print(
            f"[dim]Budget {budget['seconds']:.1f} s: {budget['serial_epochs']} epochs of one process "
            f"with {budget['framework']} ({rates} images/s measured just before the run) "
            f"+ {budget['startup_seconds']:.1f} s start-up[/]",
            highlight=False,
        )
    if not passed and document["hints"]:
        console.print("[dim]Hints from reading the script (they change no points):[/]")
        for hint in document["hints"][:6]:
            line = f"line {hint['line']}: " if hint["line"] else ""
            console.print(f"  {line}{escape(hint['text'])}", highlight=False)
    if not passed and document["output"].strip():
        lines = document["output"].strip().splitlines()[-OUTPUT_LINES:]
        console.print("[dim]The end of its output:[/]")
        for line in lines:
            console.print(f"  [dim]{escape(line[:300])}[/]", highlight=False)
