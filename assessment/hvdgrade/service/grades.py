"""Which result counts for a person, and what staff changes about it.

The counted result is computed from the gradings, which never change after their end. So a change can be taken
back: what it added is then left out of the computation.
"""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from hvdgrade import profiles
from hvdgrade.output.text import plain
from hvdgrade.service.intake import Refused, deadlines, enqueue
from hvdgrade.service.models import (
    AFTER_FAULT,
    AGAIN,
    DONE,
    FAULT,
    LEASED,
    QUEUED,
    Appeal,
    Assignment,
    Event,
    Extension,
    Grade,
    Grading,
    LineItem,
    Person,
    Post,
    Regrade,
    Submission,
)

MOST_TEXT = 4000  # characters of a question or an answer


def settle(
    session: Session, assignment: Assignment, person: Person, now: datetime.datetime
) -> Grade:
    """Compute the grade of a person again, and return it. A change is posted where an LMS takes scores."""
    with _changing(session, assignment, person, now) as grade:
        pass
    return grade


@contextmanager
def _changing(
    session: Session, assignment: Assignment, person: Person, now: datetime.datetime
) -> Iterator[Grade]:
    """Yield the grade of a person, locked so that two changes follow each other; then compute it again."""
    session.get(Person, person.id, with_for_update={"key_share": True})
    grade = session.get(Grade, (assignment.id, person.id), populate_existing=True)
    if grade is None:
        grade = Grade(assignment_id=assignment.id, person_id=person.id, version=0, changed=now)
        session.add(grade)
    before = grade.points, grade.max_score
    yield grade
    found = counted(session, assignment, person)
    grade.grading_id, grade.score = (found.id, found.score) if found else (None, None)
    has_points = found or grade.override is not None
    grade.max_score = _most_points(assignment, found) if has_points else None
    changed = before != (grade.points, grade.max_score)
    if changed:
        grade.version += 1
        grade.changed = now
    session.flush()
    if changed and assignment.released:
        post(session, grade)


def counted(
    session: Session,
    assignment: Assignment,
    person: Person,
    trial: Regrade | None = None,
    without: Regrade | None = None,
) -> Grading | None:
    """Return the grading that counts by `assignment.counts`; None if none has points.

    For each submission it is the best of its gradings, which may be repeated. If a regrade is applied, it is
    the best of the regrade and of what was graded after it. Late submissions count like others.

    Args:
        trial: a regrade that is computed as if it was applied now, unless it is. Default: none.
        without: a regrade that is computed as if it was not applied. Default: none.
    """
    rows = session.execute(
        select(Grading, Submission.number, Regrade.applied)
        .join(Submission, Grading.submission_id == Submission.id)
        .outerjoin(Regrade, Grading.regrade_id == Regrade.id)
        .where(Submission.assignment_id == assignment.id, Submission.person_id == person.id)
        .where(Grading.state == DONE, Grading.score.is_not(None))
        .order_by(Grading.id)
        .options(defer(Grading.document), defer(Grading.log))
    ).all()
    last = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    by_number: dict[int, list[tuple[Grading, datetime.datetime | None]]] = {}
    for grading, number, applied in rows:
        if trial and grading.regrade_id == trial.id:
            applied = applied or last
        if without and grading.regrade_id == without.id:
            continue
        if grading.regrade_id is None or applied:
            by_number.setdefault(number, []).append((grading, applied))
    results = {number: _of_submission(found) for number, found in sorted(by_number.items())}
    if not results:
        return None
    if assignment.counts == "last":
        return results[max(results)]
    return max(results.values(), key=_fraction)  # the first of equal ones


def _of_submission(found: list[tuple[Grading, datetime.datetime | None]]) -> Grading:
    """Return the result of one submission from its gradings and the moments at which they were applied."""
    regraded = [(applied, grading.id) for grading, applied in found if applied]
    newest = max(regraded)[1] if regraded else 0
    return max(
        (g for g, applied in found if g.id == newest or (g.id > newest and not applied)),
        key=_fraction,
    )


def _fraction(grading: Grading) -> float:
    return grading.score / grading.max_score if grading.max_score else 0.0


def _most_points(assignment: Assignment, found: Grading | None) -> float:
    if found:
        return found.max_score
    return float(sum(profiles.load(assignment.profile).points.values()))


def post(session: Session, grade: Grade) -> None:
    """Put the points of a grade in the outbox, if its assignment has a place in an LMS."""
    names = ("assignment_id", "person_id", "version")
    own = {name: getattr(grade, name) for name in names}
    known = select(Post.id).filter_by(**own)
    if session.get(LineItem, grade.assignment_id) and not session.scalar(known):
        points = {"score": grade.points, "max_score": grade.max_score}
        moments = {"timestamp": grade.changed, "next_at": grade.changed}
        session.add(Post(**own, **points, **moments))
        session.flush()


def override(
    session: Session,
    assignment: Assignment,
    person: Person,
    points: float | None,
    by: str,
    reason: str,
    now: datetime.datetime,
) -> Grade:
    """Set the points of a person, or withdraw that with None, so that the gradings count again.

    Raises:
        Refused: they are not between 0 and the largest number of points.
    """
    most = _most_points(assignment, counted(session, assignment, person))
    if points is not None and not 0 <= points <= most:
        raise Refused(400, f"points must be from 0 to {most:g}, not {points:g}.")
    what = "withdraw override" if points is None else "override"
    record(session, assignment, by, what, f"person {person.id}", f"{points}: {reason}", now)
    with _changing(session, assignment, person, now) as grade:
        grade.override, grade.by, grade.reason = points, by, reason
    return grade


def extend(session: Session, extension: Extension, now: datetime.datetime) -> None:
    """Store another deadline or more attempts of a person. What is not set stays as it was stored before.

    Submissions that were late and are in time by the new deadline are no longer marked.
    """
    extension = session.merge(extension)
    session.flush()  # fills in what is not set
    assignment = session.get(Assignment, extension.assignment_id)
    person = session.get(Person, extension.person_id)
    due, _ = deadlines(session, assignment, person)
    for one in session.scalars(select(Submission).filter_by(assignment=assignment, person=person)):
        one.late = due is not None and one.received > due
    detail = f"due {extension.due}, closes {extension.closes}, attempts {extension.attempts}"
    detail, whom = f"{detail}: {extension.reason}", f"person {person.id}"
    record(session, assignment, extension.by, "extension", whom, detail, now)


def again(session: Session, submission: Submission, by: str, now: datetime.datetime) -> Grading:
    """Grade the same script again. The better of its results then counts.

    Raises:
        Refused: a grading of it waits or runs.
    """
    states = session.scalars(
        select(Grading.state).filter_by(submission_id=submission.id).order_by(Grading.id)
    ).all()
    if {QUEUED, LEASED} & set(states):
        raise Refused(409, "this submission waits in the queue or is being graded.")
    if submission.replaced_by:
        raise Refused(409, "a newer submission has replaced this one.")
    reason = AFTER_FAULT if states[-1:] == [FAULT] else AGAIN
    record(session, submission.assignment, by, "grade again", submission.id, reason, now)
    return enqueue(session, submission, reason, now)


def release(session: Session, assignment: Assignment, by: str, now: datetime.datetime) -> None:
    """Show the results of an assignment to learners, and post them where an LMS takes scores."""
    assignment.released = True
    record(session, assignment, by, "release", assignment.slug, "", now)
    for grade in session.scalars(select(Grade).where(Grade.assignment_id == assignment.id)):
        if grade.version:
            post(session, grade)


def appeal(session: Session, submission: Submission, text: str, now: datetime.datetime) -> Appeal:
    """Store a learner's question about a result.

    Raises:
        Refused: the text is empty, or an earlier question about this submission is open.
    """
    text = plain(text, MOST_TEXT).strip()
    if not text:
        raise Refused(400, "say in a sentence what you think is wrong with the result.")
    if session.scalar(select(Appeal).filter_by(submission_id=submission.id, state="open")):
        raise Refused(409, "your question about this submission is open: wait for its answer.")
    made = Appeal(submission=submission, text=text, at=now)
    session.add(made)
    session.flush()
    return made


def answer(
    session: Session, asked: Appeal, state: str, text: str, by: str, now: datetime.datetime
) -> None:
    """Answer a question. This changes no points: `again` or `override` does.

    Args:
        state: "kept" or "changed".

    Raises:
        Refused: it is answered already, or the state is none of both.
    """
    if asked.state != "open" or state not in ("kept", "changed"):
        raise Refused(409, "an open appeal can become 'kept' or 'changed', and this one cannot.")
    asked.state, asked.answer, asked.by = state, plain(text, MOST_TEXT), by
    on = f"appeal {asked.id}"
    record(session, asked.submission.assignment, by, f"appeal {state}", on, asked.answer, now)


def record(
    session: Session,
    assignment: Assignment,
    who: str,
    what: str,
    on: str,
    detail: str,
    now: datetime.datetime,
) -> None:
    """Add a line to the log of a course."""
    row = {"at": now, "who": who, "what": what, "on": on, "detail": detail}
    session.add(Event(course_id=assignment.course_id, **row))
    session.flush()
