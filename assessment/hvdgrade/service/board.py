"""The leaderboard of an assignment: passes of the people who chose to appear, under pseudonyms.

Seconds are shown as a share of the time budget, which was measured on the same machine just before the run.
Results within 5 % share a place, because the seconds of one script spread by 4.5 %.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hvdgrade.output.text import is_number, plain
from hvdgrade.report.class_rows import appearance
from hvdgrade.service import access, server, status
from hvdgrade.service.access import Caller
from hvdgrade.service.intake import Refused
from hvdgrade.service.models import (
    INSTRUCTOR,
    Assignment,
    BoardEntry,
    Grade,
    Grading,
    Member,
    Person,
    Regrade,
    Submission,
)
from hvdgrade.service.rendering import form, seen, shown, text_of

SAME_PLACE = 1.05
MOST_CHARACTERS = 40


@dataclass(frozen=True)
class Line:
    """A line of the leaderboard."""

    place: int
    pseudonym: str
    share: float  # of the time budget
    person: int


def lines(session: Session, assignment: Assignment) -> list[Line]:
    """Return the leaderboard, the fastest first, with the fastest pass without flags of each person."""
    fastest: dict[int, tuple[float, str]] = {}
    for entry, seconds, budget, flags in session.execute(_passes(assignment)):
        if not flags and is_number(seconds) and is_number(budget, 1e-3):
            share = seconds / budget, entry.pseudonym
            fastest[entry.person_id] = min(share, fastest.get(entry.person_id, share))
    ranked = sorted((*best, person) for person, best in fastest.items())
    made, place, first = [], 0, 0.0
    for number, (share, pseudonym, person) in enumerate(ranked, 1):
        if share > first * SAME_PLACE:
            place, first = number, share
        made.append(Line(place, pseudonym, share, person))
    return made


def _passes(assignment: Assignment):
    """Return the query of all passes of those who chose to appear, unless staff have set their points."""
    budget, flags = Grading.document[("budget", "seconds")], Grading.document["flags"]
    here, who = BoardEntry.assignment_id == assignment.id, BoardEntry.person_id
    chose = and_(Submission.assignment_id == assignment.id, Submission.person_id == who)
    graded = and_(Grade.assignment_id == assignment.id, Grade.person_id == who)
    return (
        select(BoardEntry, Grading.seconds_to_target, budget.as_float(), flags.as_json())
        .join(Submission, chose)
        .join(Grading, Grading.submission_id == Submission.id)
        .join(Grade, graded)
        .outerjoin(Regrade, Regrade.id == Grading.regrade_id)
        .where(here, Grading.verdict == "pass", Grade.override.is_(None))
        .where(or_(Grading.regrade_id.is_(None), Regrade.applied.is_not(None)))
    )


def appear(session: Session, assignment: Assignment, person: int, pseudonym: str) -> None:
    """Let a person appear under a pseudonym, which must not look like the pseudonym or name of another."""
    pseudonym = " ".join(plain(pseudonym).split())
    if not 0 < len(pseudonym) <= MOST_CHARACTERS:
        raise Refused(400, f"choose a pseudonym of 1 to {MOST_CHARACTERS} characters.")
    pseudonyms = select(BoardEntry.pseudonym).where(
        BoardEntry.assignment_id == assignment.id, BoardEntry.person_id != person
    )
    names = select(Person.name).join(Member, Member.person_id == Person.id)
    names = names.where(Member.course_id == assignment.course_id, Person.id != person)
    if appearance(pseudonym) in map(appearance, session.scalars(pseudonyms.union_all(names))):
        raise Refused(409, "somebody has this name, or one that looks the same: choose another.")
    entry = BoardEntry(assignment_id=assignment.id, person_id=person, pseudonym=pseudonym)
    session.merge(entry)


def disappear(session: Session, assignment: Assignment, person: int) -> None:
    """Remove a person from the leaderboard."""
    if entry := session.get(BoardEntry, (assignment.id, person)):
        session.delete(entry)


def _assignment(session: Session, caller: Caller, slug: str) -> tuple[Assignment, str]:
    found, role = access.assignment(session, caller, slug)
    if not found.board:
        raise HTTPException(404, access.NOT_FOUND)
    return found, role


@shown("board.html.j2")
def board(session: Session, caller: Caller, slug: str) -> dict[str, Any]:
    """GET /board/{slug}: the leaderboard, and whether the reader appears on it."""
    found, role = _assignment(session, caller, slug)
    hidden = status.is_hidden(found, role in access.STAFF)
    return {
        "assignment": found,
        "hidden": hidden,
        "instructor": role == INSTRUCTOR,
        "lines": [] if hidden else lines(session, found),
        "own": session.get(BoardEntry, (found.id, caller.person_id)),
    }


@form
async def choose(request: Request, caller: Caller, fields: FormData) -> Response:
    """POST /board/{slug}: appear under a pseudonym, or not any more. A person chooses only for themselves."""
    slug = request.path_params["slug"]

    def work(session: Session) -> None:
        found, _ = _assignment(session, caller, slug)
        if text_of(fields, "button") == "leave":
            disappear(session, found, caller.person_id)
        else:
            appear(session, found, caller.person_id, text_of(fields, "pseudonym"))
        server.note(session, found.id)

    await server.of(request).work(work)
    return seen(request, f"/board/{slug}")


ROUTES = [Route("/board/{slug}", board), Route("/board/{slug}", choose, methods=["POST"])]
