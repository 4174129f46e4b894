"""What staff look at before they answer an appeal, and what a regrade would change.

rubric.md says in which order: the first check that failed, the measured number, all rounds, the speed of the
machine next to that of the class, and the flags with their lines.
"""

import datetime
from collections import Counter
from statistics import median
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from hvdgrade.output.text import line_of, plain
from hvdgrade.profiles import UnknownProfile, load
from hvdgrade.report.wording import items, part
from hvdgrade.service import regrade, status
from hvdgrade.service.models import Appeal, Assignment, Grading, Regrade, Submission
from hvdgrade.service.results import briefs, speed

SAME = ("sandbox_tier", "hardware")  # of a grader: only then speeds compare


def appeals(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return the appeals of an assignment, the open ones first, with what to look at."""
    found = session.scalars(
        select(Appeal)
        .join(Submission, Submission.id == Appeal.submission_id)
        .where(Submission.assignment_id == assignment.id)
        .order_by(Appeal.state != "open", Appeal.id.desc())
        .limit(100)
    )
    results = list(briefs(session, assignment).values())
    return {"rows": [_evidence(session, each, results) for each in found]}


def _evidence(session: Session, asked: Appeal, results: list[dict[str, Any]]) -> dict[str, Any]:
    submission = asked.submission
    grading = status.current(session, submission)
    document = plain((grading and grading.document) or {})
    failed = [
        check for check in items(document, "checks") if check.get("state") in ("fail", "partial")
    ]
    lines = submission.script.decode("utf-8", "replace").splitlines()
    grader = part(document, "grader")
    like = [each for each in results if _same(part(each, "grader"), grader)]
    speeds = [found for each in like if (found := speed(each))]
    again = select(Grading).where(Grading.submission_id == submission.id).order_by(Grading.id)
    return {
        "appeal": asked,
        "submission": submission,
        "status": status.described(session, submission, True, asked.at),
        "first_failed": failed[0] if failed else None,
        "rounds": items(document, "runs"),
        "budget": part(document, "budget").get("seconds"),
        "grader": grader,
        "speed": speed(document),
        "class_speed": median(speeds) if speeds else None,
        "class_size": len(speeds),
        "flags": [
            flag | {"source": line_of(lines, flag.get("line"))} for flag in items(document, "flags")
        ],
        "gradings": session.scalars(again).all(),
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one.get(name) == other.get(name) for name in SAME)


def regrades(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return the regrades of an assignment with what each changes, and what can be chosen for a new one."""
    found = session.scalars(
        select(Regrade).where(Regrade.assignment_id == assignment.id).order_by(Regrade.id.desc())
    ).all()
    titles = {
        check["id"]: check["title"]
        for each in briefs(session, assignment).values()
        for check in each["checks"]
    }
    try:
        rules = load(assignment.profile).rules_sha256
    except UnknownProfile:
        rules = ""
    tables = {each.id: _table(session, each) for each in found}
    return {
        "regrades": found,
        "tables": tables,
        "checks": titles,
        "other_rules": rules if rules != assignment.rules_sha256 else "",
    }


def _table(session: Session, one: Regrade) -> dict[str, Any]:
    rows = regrade.table(session, one)
    states = sum((row.states for row in rows), Counter())
    changed = [row for row in rows if _points(row.before) != _points(row.after)]
    return {"states": states, "changed": changed, "same": len(rows) - len(changed)}


def _points(grading: Grading | None) -> tuple[Any, ...] | None:
    return grading and (grading.score, grading.max_score, grading.verdict)
