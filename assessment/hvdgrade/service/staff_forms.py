"""What instructors change: deadlines, points, appeals, regrades. Each change is a line in the log.

An action is a function that does what a form asks and returns the address of the page to show.
"""

import datetime
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException

from hvdgrade.service import access, assignments, board, grades, poster, queue, regrade
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
from hvdgrade.service.moment import NoMoment, moment
from hvdgrade.service.rendering import text_of
from hvdgrade.service.results import briefs

Row = TypeVar("Row", bound=Base)


@dataclass(frozen=True)
class Form:
    """A form that somebody sent about an assignment. Its methods read a field, or answer 400 or 404."""

    session: Session
    assignment: Assignment
    fields: FormData | QueryParams
    who: str
    now: datetime.datetime

    def page(self, path: str) -> str:
        """Return the address of a page of the assignment's staff."""
        return f"/i/{self.assignment.slug}/{path}"

    def text(self, name: str) -> str:
        """Return a text; "" without one."""
        return text_of(self.fields, name)

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number; None if its field is empty."""
        text = self.text(name)
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

    def count(self, name: str, most: int = 10**15) -> int | None:
        """Return a whole number from 1; None if its field is empty."""
        value = self.number(name, 1, most)
        return None if value is None else int(value)

    def moment(self, name: str) -> datetime.datetime | None:
        """Return a moment in the time zone of the field `zone`; None if its field is empty."""
        text = self.text(name)
        try:
            return moment(f"{text} {self.text('zone')}") if text else None
        except NoMoment as error:
            raise HTTPException(400, f"{name}: {error}") from None

    def row(self, kind: type[Row], id: str | int | None) -> Row:
        """Return a row of this assignment."""
        row = self.session.get(kind, id or 0)
        about = row.submission if isinstance(row, Appeal) else row
        if about is None or about.assignment_id != self.assignment.id:
            raise HTTPException(404, access.NOT_FOUND)
        return row

    def learner(self) -> Person:
        """Return the member of the course whom the field `person` names."""
        key = (self.assignment.course_id, self.count("person") or 0)
        if (member := self.session.get(Member, key)) is None:
            raise HTTPException(404, access.NOT_FOUND)
        return member.person

    def log(self, what: str, on: str) -> None:
        """Add a line to the log of the course."""
        grades.record(self.session, self.assignment, self.who, what, on, "", self.now)


def settings(form: Form) -> str:
    """Change deadlines, attempts and what learners see."""
    values = {
        "title": form.text("title")[:200],
        **{name: form.moment(name) for name in ("opens", "due", "closes")},
        "attempts": form.count("attempts", 1000),
        "cooldown_s": form.number("cooldown_s", 0, 86_400) or 0.0,
        "limit_s": form.number("limit_s", 60, 86_400) or form.assignment.limit_s,
        **{name: form.text(name) for name in assignments.CHOICES},
        "board": form.text("board") == "yes",
    }
    assignments.change(form.session, form.assignment, values, form.who, form.now)
    return form.page("settings")


def exam(form: Form) -> str:
    """Make it an exam."""
    assignments.change(form.session, form.assignment, assignments.EXAM, form.who, form.now)
    return form.page("settings")


def unlist(form: Form) -> str:
    """Remove a person from the leaderboard."""
    person = form.learner()
    board.disappear(form.session, form.assignment, person.id)
    form.log("remove from the leaderboard", f"person {person.id}")
    return f"/board/{form.assignment.slug}"


def release(form: Form) -> str:
    """Show the results to learners, or hide them."""
    if form.text("released") == "yes":
        if feedback := form.text("feedback"):
            values = {"feedback": feedback}
            assignments.change(form.session, form.assignment, values, form.who, form.now)
        grades.release(form.session, form.assignment, form.who, form.now)
    else:
        form.assignment.released = False
        form.log("hide results", form.assignment.slug)
    return form.page("settings")


def extension(form: Form) -> str:
    """Give one person another deadline or more attempts."""
    person = form.learner()
    given = Extension(
        assignment_id=form.assignment.id,
        person_id=person.id,
        due=form.moment("due"),
        closes=form.moment("closes"),
        attempts=form.count("attempts", 1000),
        by=form.who,
        reason=form.text("reason"),
    )
    grades.extend(form.session, given, form.now)
    return form.page(f"person/{person.id}")


def override(form: Form) -> str:
    """Set the points of a person, or withdraw that with an empty field."""
    person, points, reason = form.learner(), form.number("points", 0, 1e6), form.text("reason")
    if not reason:
        raise HTTPException(400, "Write the reason. The learner sees it.")
    grades.override(form.session, form.assignment, person, points, form.who, reason, form.now)
    return form.page(f"person/{person.id}")


def again(form: Form) -> str:
    """Grade the same file again; the better result counts."""
    submission = form.row(Submission, form.text("submission"))
    grades.again(form.session, submission, form.who, form.now)
    return f"/s/{submission.id}"


def cancel(form: Form) -> str:
    """Take a submission out of the queue."""
    submission = form.row(Submission, form.text("submission"))
    is_open = Grading.state.in_((QUEUED, LEASED))
    opened = select(Grading.id).where(Grading.submission_id == submission.id, is_open)
    if not queue.cancel(form.session, form.session.scalar(opened) or 0, form.now):
        raise HTTPException(409, "It neither waits nor runs.")
    form.log("cancel", submission.id)
    return f"/s/{submission.id}"


def answer(form: Form) -> str:
    """Answer an appeal."""
    asked, state, text = (
        form.row(Appeal, form.count("appeal")),
        form.text("state"),
        form.text("text"),
    )
    grades.answer(form.session, asked, state, text, form.who, form.now)
    return form.page("appeals")


def change_post(form: Form) -> str:
    """Hold a score for the LMS, or send it again."""
    post, button = form.row(Post, form.count("post")), form.text("button")
    poster.change(form.session, post, button, form.who, form.now)
    return form.page("posts")


def begin_regrade(form: Form) -> str:
    """Queue a selection of what counts for another grading."""
    chosen, results = form.text("which"), briefs(form.session, form.assignment)

    def is_chosen(person: int) -> bool:
        found = results.get(person) or {}
        states = {check["id"]: check["state"] for check in found.get("checks", [])}
        failed = {"failed": found.get("verdict") != "pass", "all": True}
        return failed.get(chosen, states.get(chosen) not in ("pass", None))

    counting = regrade.counting(form.session, form.assignment)
    submissions = [each for each in counting if is_chosen(each.person_id)]
    about = (form.who, form.text("reason"), form.now, form.text("rules"))
    regrade.begin(form.session, form.assignment, submissions, *about)
    return form.page("regrade")


def apply_regrade(form: Form) -> str:
    """Let the results of a regrade count."""
    regrade.apply(form.session, form.row(Regrade, form.count("regrade")), form.who, form.now)
    return form.page("regrade")


def undo_regrade(form: Form) -> str:
    """Let the results of a regrade no longer count."""
    regrade.undo(form.session, form.row(Regrade, form.count("regrade")), form.who, form.now)
    return form.page("regrade")


ACTIONS: dict[str, Callable[[Form], str]] = {
    "settings": settings,
    "exam": exam,
    "unlist": unlist,
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
