"""Grade a selection of submissions again, compare, and let the new results count or not.

    begin -> the gradings run -> table -> apply -> (undo)

Nothing changes for learners before `apply`. `undo` computes the grades without the regrade, so they are
exactly what they would be if it had never been applied.
"""

import datetime
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from hvdgrade.service import grades
from hvdgrade.service.intake import Refused, enqueue
from hvdgrade.service.models import (
    LEASED,
    QUEUED,
    REGRADE,
    Assignment,
    Grade,
    Grading,
    Person,
    Regrade,
    Submission,
)


@dataclass(frozen=True)
class Row:
    """What a regrade changes for a person: the grading that counts without it and with it."""

    person: Person
    before: Grading | None
    after: Grading | None
    states: Counter[str]  # of the person's gradings in it


def begin(
    session: Session,
    assignment: Assignment,
    submissions: Iterable[Submission],
    by: str,
    reason: str,
    now: datetime.datetime,
    rules_sha256: str = "",
) -> Regrade:
    """Queue submissions once more, after all others. One that waits or runs is left out.

    Args:
        rules_sha256: the rules to grade with. Default: those of the assignment.

    Raises:
        Refused: nothing can be graded again.
    """
    regrade = Regrade(
        assignment=assignment, by=by, reason=reason, at=now, rules_sha256=rules_sha256
    )
    is_open = exists().where(Grading.submission_id == Submission.id, _is_open())
    ids = [submission.id for submission in submissions]
    chosen = session.scalars(
        select(Submission)
        .where(Submission.assignment_id == assignment.id, Submission.id.in_(ids), ~is_open)
        .order_by(Submission.received, Submission.id)
    ).all()
    if not chosen:
        raise Refused(409, f"no submission of {assignment.slug} can be graded again.")
    session.add(regrade)
    for submission in chosen:
        enqueue(session, submission, REGRADE, now, regrade)
    detail = f"{len(chosen)} submissions: {reason}"
    grades.record(session, assignment, by, "regrade", f"regrade {regrade.id}", detail, now)
    return regrade


def counting(session: Session, assignment: Assignment) -> list[Submission]:
    """Return the submissions whose results count: the usual selection."""
    return list(
        session.scalars(
            select(Submission)
            .join(Grading, Grading.submission_id == Submission.id)
            .join(Grade, Grade.grading_id == Grading.id)
            .where(Grade.assignment_id == assignment.id)
        )
    )


def table(session: Session, regrade: Regrade) -> list[Row]:
    """Return what the regrade would change, or has changed, a row per person."""
    assignment, rows = regrade.assignment, []
    for person in _people(session, regrade):
        query = select(Grading.state).join(Submission, Grading.submission_id == Submission.id)
        states = session.scalars(query.where(_of(regrade), Submission.person_id == person.id))
        before = grades.counted(session, assignment, person, without=regrade)
        after = grades.counted(session, assignment, person, trial=regrade)
        rows.append(Row(person, before, after, Counter(states)))
    return rows


def apply(session: Session, regrade: Regrade, by: str, now: datetime.datetime) -> None:
    """Let the results of a regrade count, and those that they replace no longer.

    Raises:
        Refused: it is applied already, or some of its gradings have not ended.
    """
    left = session.scalar(select(func.count(Grading.id)).where(_of(regrade), _is_open()))
    if left:
        raise Refused(
            409, f"{left} gradings of regrade {regrade.id} have not ended: wait, or cancel them."
        )
    _set(session, regrade, now, by, now)


def undo(session: Session, regrade: Regrade, by: str, now: datetime.datetime) -> None:
    """Take back `apply`, or raise Refused if it is not applied."""
    _set(session, regrade, None, by, now)


def _set(
    session: Session,
    regrade: Regrade,
    applied: datetime.datetime | None,
    by: str,
    now: datetime.datetime,
) -> None:
    session.refresh(regrade, with_for_update=True)
    if bool(regrade.applied) == bool(applied):
        state = "applied already" if applied else "not applied"
        raise Refused(409, f"regrade {regrade.id} is {state}.")
    regrade.applied = applied
    what = "apply regrade" if applied else "undo regrade"
    grades.record(session, regrade.assignment, by, what, f"regrade {regrade.id}", "", now)
    for person in _people(session, regrade):
        grades.settle(session, regrade.assignment, person, now)


def _people(session: Session, regrade: Regrade) -> list[Person]:
    """Return the people of a regrade, in the order in which their rows are locked."""
    joined = select(Person).join(Submission, Submission.person_id == Person.id)
    graded = joined.join(Grading, Grading.submission_id == Submission.id).where(_of(regrade))
    return list(session.scalars(graded.distinct().order_by(Person.id)))


def _of(regrade: Regrade):
    return Grading.regrade_id == regrade.id


def _is_open():
    return Grading.state.in_((QUEUED, LEASED))
