"""What instructors change: deadlines, points, appeals, regrades. Each change is a line in the log.

An action is a function (session, assignment, fields, who, now) that returns the address of the page to show.
"""

import datetime
import math
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException

from hvdgrade.service import access, grades, posts, queue, regrade
from hvdgrade.service.models import (
    LEASED,
    QUEUED,
    Appeal,
    Assignment,
    Base,
    Extension,
    Grading,
    Member,
    Person,
    Post,
    Regrade,
    Submission,
)
from hvdgrade.service.moment import NoMoment
from hvdgrade.service.moment import moment as read_moment
from hvdgrade.service.rendering import text_of
from hvdgrade.service.results import briefs

Action = Callable[[Session, Assignment, FormData, str, datetime.datetime], str]
Row = TypeVar("Row", bound=Base)
CHOICES = {"counts": ("best", "last"), "feedback": ("full", "verdict", "none")}


def settings(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Change deadlines, attempts and what learners see."""
    names = "title opens due closes attempts cooldown_s counts feedback limit_s".split()
    before = {name: getattr(assignment, name) for name in names}
    assignment.title = text_of(fields, "title")[:200]
    for name in ("opens", "due", "closes"):
        setattr(assignment, name, moment(fields, name))
    if assignment.due and assignment.closes and assignment.closes < assignment.due:
        raise HTTPException(400, "It must not close before it is due.")
    attempts = number(fields, "attempts", 1, 1000)
    assignment.attempts = None if attempts is None else int(attempts)
    assignment.cooldown_s = number(fields, "cooldown_s", 0, 86_400) or 0.0
    assignment.limit_s = number(fields, "limit_s", 60, 86_400) or assignment.limit_s
    for name, choices in CHOICES.items():
        if text_of(fields, name) not in choices:
            raise HTTPException(400, f"{name} must be one of {', '.join(choices)}.")
        setattr(assignment, name, text_of(fields, name))
    changed = [
        f"{name} {old} -> {getattr(assignment, name)}"
        for name, old in before.items()
        if old != getattr(assignment, name)
    ]
    detail = "; ".join(changed)
    grades.record(session, assignment, who, "settings", assignment.slug, detail, now)
    if before["counts"] != assignment.counts:
        members = select(Person).join(Member).where(Member.course_id == assignment.course_id)
        for person in session.scalars(members.order_by(Person.id)):
            grades.settle(session, assignment, person, now)
    return f"/i/{assignment.slug}/settings"


def release(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Show the results to learners, or hide them."""
    if text_of(fields, "released") == "yes":
        grades.release(session, assignment, who, now)
    else:
        assignment.released = False
        grades.record(session, assignment, who, "hide results", assignment.slug, "", now)
    return f"/i/{assignment.slug}/settings"


def extension(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Give one person another deadline or more attempts."""
    person = learner(session, assignment, fields)
    attempts = number(fields, "attempts", 1, 1000)
    given = Extension(
        assignment_id=assignment.id,
        person_id=person.id,
        due=moment(fields, "due"),
        closes=moment(fields, "closes"),
        attempts=None if attempts is None else int(attempts),
        by=who,
        reason=text_of(fields, "reason"),
    )
    grades.extend(session, given, now)
    return f"/i/{assignment.slug}/person/{person.id}"


def override(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Set the points of a person, or withdraw that with an empty field."""
    person = learner(session, assignment, fields)
    points, reason = number(fields, "points", 0, 1e6), text_of(fields, "reason")
    if not reason:
        raise HTTPException(400, "Write the reason. The learner sees it.")
    grades.override(session, assignment, person, points, who, reason, now)
    return f"/i/{assignment.slug}/person/{person.id}"


def again(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Grade the same file again; the better result counts."""
    submission = own(session, assignment, Submission, text_of(fields, "submission"))
    grades.again(session, submission, who, now)
    return f"/s/{submission.id}"


def cancel(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Take a submission out of the queue."""
    submission = own(session, assignment, Submission, text_of(fields, "submission"))
    is_open = Grading.state.in_((QUEUED, LEASED))
    grading = session.scalar(select(Grading).where(Grading.submission_id == submission.id, is_open))
    if grading is None or not queue.cancel(session, grading.id, now):
        raise HTTPException(409, "It neither waits nor runs.")
    grades.record(session, assignment, who, "cancel", submission.id, "", now)
    return f"/s/{submission.id}"


def answer(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Answer an appeal."""
    asked = session.get(Appeal, int(number(fields, "appeal", 0, 1e15) or 0))
    if asked is None or asked.submission.assignment_id != assignment.id:
        raise HTTPException(404, access.NOT_FOUND)
    grades.answer(session, asked, text_of(fields, "state"), text_of(fields, "text"), who, now)
    return f"/i/{assignment.slug}/appeals"


def change_post(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Hold a score for the LMS, or send it again."""
    post = own(session, assignment, Post, int(number(fields, "post", 0, 1e15) or 0))
    button = text_of(fields, "button")
    posts.change(post, button, now)
    grades.record(session, assignment, who, f"{button} score", str(post.person_id), "", now)
    return f"/i/{assignment.slug}/posts"


def begin_regrade(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Queue a selection of what counts for another grading."""
    chosen, rules = text_of(fields, "which"), text_of(fields, "rules")
    results = briefs(session, assignment)

    def is_chosen(person: int) -> bool:
        found = results.get(person) or {}
        states = {check["id"]: check["state"] for check in found.get("checks", [])}
        failed = {"failed": found.get("verdict") != "pass", "all": True}
        return failed.get(chosen, states.get(chosen) not in ("pass", None))

    submissions = [
        each for each in regrade.counting(session, assignment) if is_chosen(each.person_id)
    ]
    regrade.begin(session, assignment, submissions, who, text_of(fields, "reason"), now, rules)
    return f"/i/{assignment.slug}/regrade"


def apply_regrade(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Let the results of a regrade count."""
    regrade.apply(session, own(session, assignment, Regrade, _id(fields)), who, now)
    return f"/i/{assignment.slug}/regrade"


def undo_regrade(
    session: Session, assignment: Assignment, fields: FormData, who: str, now: datetime.datetime
) -> str:
    """Let the results of a regrade no longer count."""
    regrade.undo(session, own(session, assignment, Regrade, _id(fields)), who, now)
    return f"/i/{assignment.slug}/regrade"


ACTIONS: dict[str, Action] = {
    "settings": settings,
    "release": release,
    "extension": extension,
    "override": override,
    "again": again,
    "cancel": cancel,
    "answer": answer,
    "post": change_post,
    "regrade": begin_regrade,
    "apply": apply_regrade,
    "undo": undo_regrade,
}


# --- fields of forms --------------------------------------------------------------------------------


def _id(fields: FormData) -> int:
    return int(number(fields, "regrade", 0, 1e15) or 0)


def own(session: Session, assignment: Assignment, kind: type[Row], id: str | int) -> Row:
    """Return a row of this assignment.

    Raises:
        HTTPException: 404 if there is none, or it is of another assignment.
    """
    row = session.get(kind, id)
    if row is None or row.assignment_id != assignment.id:
        raise HTTPException(404, access.NOT_FOUND)
    return row


def learner(session: Session, assignment: Assignment, fields: FormData) -> Person:
    """Return the member of the course that a form names.

    Raises:
        HTTPException: 404.
    """
    id = int(number(fields, "person", 0, 1e15) or 0)
    member = session.get(Member, (assignment.course_id, id))
    if member is None:
        raise HTTPException(404, access.NOT_FOUND)
    return member.person


def number(fields: FormData, name: str, least: float, most: float) -> float | None:
    """Return a number of a form; None if its field is empty.

    Raises:
        HTTPException: 400.
    """
    text = text_of(fields, name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise HTTPException(
            400, f"{name} must be a number from {least:g} to {most:g}, not {text[:40]}."
        )
    return value


def moment(fields: FormData, name: str) -> datetime.datetime | None:
    """Return a moment that a form states in the time zone of its field `zone`; None if it is empty.

    Raises:
        HTTPException: 400.
    """
    text = text_of(fields, name)
    if not text:
        return None
    try:
        return read_moment(f"{text} {text_of(fields, 'zone')}")
    except NoMoment as error:
        raise HTTPException(400, f"{name}: {error}") from None
