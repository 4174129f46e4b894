"""The results of a class, small enough to be read for every page: what counts, and why.

A document has up to 256 kB, and a class of 500 people has as many. A grading that has ended never changes, so
what a page needs of its document is read once and kept.
"""

from typing import Any

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session, defer

from hvdgrade.output.text import plain
from hvdgrade.report.class_rows import error_line
from hvdgrade.report.wording import items, part, why
from hvdgrade.result_document import ResultDocument
from hvdgrade.service.models import Assignment, Grade, Grading, Submission

FIELDS = "status grade_again reason verdict score max_score seconds_to_target budget grader".split()
MOST_KEPT = 5000
_kept: dict[tuple[int, str], dict[str, Any]] = {}


def brief(document: ResultDocument) -> dict[str, Any]:
    """Return what a page of a class needs of a document, as harmless text."""
    shown = plain({name: document.get(name) for name in FIELDS})
    checks = [
        {name: check.get(name) for name in ("id", "title", "state")}
        for check in items(document, "checks")
    ]
    passed = document.get("verdict") == "pass"
    return shown | {
        "checks": plain(checks),
        "flags": plain(items(document, "flags")),
        "why": "" if passed else plain(why(document)),
        "error": "" if passed else error_line(document),
    }


def briefs(session: Session, assignment: Assignment) -> dict[int, dict[str, Any]]:
    """Return the brief of the result that counts: person -> brief."""
    rows = session.execute(
        select(Grade.person_id, Grading.id, Grading.submission_id)
        .join(Grading, Grading.id == Grade.grading_id)
        .where(Grade.assignment_id == assignment.id)
    ).all()
    keys = {person: (grading, submission) for person, grading, submission in rows}
    if len(_kept) > MOST_KEPT:
        _kept.clear()
    missing = [key[0] for key in keys.values() if key not in _kept]
    for start in range(0, len(missing), 100):
        found = select(Grading.id, Grading.submission_id, Grading.document).where(
            Grading.id.in_(missing[start : start + 100])
        )
        for grading, submission, document in session.execute(found):
            _kept[grading, submission] = brief(document or {})
    return {person: _kept[key] for person, key in keys.items()}


def newest(session: Session, assignment: Assignment, script: bool = False) -> list[Submission]:
    """Return the newest submission of each person, without its script unless that is wanted."""
    last = (
        select(Submission.person_id, func.max(Submission.number).label("number"))
        .where(Submission.assignment_id == assignment.id)
        .group_by(Submission.person_id)
        .subquery()
    )
    same = and_(Submission.person_id == last.c.person_id, Submission.number == last.c.number)
    found = select(Submission).join(last, same).where(Submission.assignment_id == assignment.id)
    return list(session.scalars(found if script else found.options(defer(Submission.script))))


def speed(result: dict[str, Any]) -> float | None:
    """Return the images per second that the calibration of a result measured; None without one."""
    measured = part(result, "budget").get("serial_images_per_second")
    return sum(measured) / len(measured) if measured else None
