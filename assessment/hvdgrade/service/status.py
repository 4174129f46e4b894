"""What is known of a submission: the status that programs read, and what its author may see of the result."""

import datetime
import math
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from hvdgrade.report.wording import outcome, why
from hvdgrade.result_document import ResultDocument
from hvdgrade.service import wait_times
from hvdgrade.service.models import (
    CANCELLED,
    DONE,
    FAULT,
    LEASED,
    QUEUED,
    STATES,
    Assignment,
    Grade,
    Grading,
    Regrade,
    Submission,
    Worker,
)

PASS, FAIL, NOT_GRADABLE, GRADER_FAULT = range(4)  # exit codes of `hvdgrade run`
EXIT_CODES = {"not_gradable": NOT_GRADABLE, "infrastructure_error": GRADER_FAULT}
# State of a submission -> its exit code, and a sentence for the learner.
WITHOUT_RESULT = {
    QUEUED: (None, "It waits for a worker."),
    LEASED: (None, "It is being graded."),
    FAULT: (GRADER_FAULT, "The grader failed, and staff can see why. It costs no attempt."),
    CANCELLED: (NOT_GRADABLE, "It was taken out of the queue. It costs no attempt."),
    "replaced": (
        NOT_GRADABLE,
        "You handed in a newer version before this one was graded. It costs no attempt.",
    ),
}
# What the feedback "verdict" leaves of a document.
VERDICT_FIELDS = (
    "schema submission grader status reason verdict score max_score seconds_to_target".split()
)


def current(session: Session, submission: Submission) -> Grading | None:
    """Return the grading that the author of a submission sees: the one that waits or runs, else the one that
    counts, else the newest. A regrade that staff have not applied is not shown."""
    shown = (
        select(Grading)
        .outerjoin(Regrade, Grading.regrade_id == Regrade.id)
        .where(Grading.submission_id == submission.id)
        .where(or_(Grading.regrade_id.is_(None), Regrade.applied.is_not(None)))
        .order_by(Grading.id.desc())
        .limit(1)
    )
    running = session.scalar(shown.where(Grading.state.in_((QUEUED, LEASED))))
    return running or counted(session, submission) or session.scalar(shown)


def counted(session: Session, submission: Submission) -> Grading | None:
    """Return the grading of a submission that counts for its author; None if another submission counts."""
    return session.scalar(
        select(Grading)
        .join(Grade, Grade.grading_id == Grading.id)
        .where(
            Grade.assignment_id == submission.assignment_id,
            Grade.person_id == submission.person_id,
            Grading.submission_id == submission.id,
        )
    )


def workers_online(session: Session, now: datetime.datetime, pool: str | None = None) -> int:
    """Return the number of workers, of a pool or of all, that are online and get work."""
    since = now - datetime.timedelta(seconds=wait_times.ONLINE_SECONDS)
    online = select(func.count(Worker.id)).where(Worker.seen > since, Worker.refused == "")
    return session.scalar(online.where(Worker.pool == pool) if pool else online) or 0


def described(
    session: Session, submission: Submission, staff: bool, now: datetime.datetime
) -> dict[str, Any]:
    """Return the status of a submission, as GET /api/submissions/{id} answers it to its author, or staff."""
    assignment, grading = submission.assignment, current(session, submission)
    state = "replaced" if submission.replaced_by else grading.state if grading else QUEUED
    waits = state == QUEUED and grading is not None
    estimate = wait_times.estimate(session, grading.id, now) if waits else None
    hidden = is_hidden(assignment, staff)
    result = grading if grading and state == DONE and not hidden else None
    code, sentence = ending(state, grading, assignment, hidden)
    return {
        "id": submission.id,
        "assignment": assignment.slug,
        "number": submission.number,
        "state": state,
        "place": wait_times.place(session, grading.id) if waits else None,
        "estimate_s": estimate and math.ceil(estimate),
        "workers": workers_online(session, now, assignment.pool),
        "progress": grading.progress if grading and state == LEASED else "",
        "late": submission.late,
        "verdict": result.verdict if result else None,
        "score": result.score if result else None,
        "max_score": result.max_score if result else None,
        "counts": not hidden and counted(session, submission) is not None,
        "exit_code": code,
        "message": sentence,
    }


def is_hidden(assignment: Assignment, staff: bool) -> bool:
    """Return whether the result of an assignment is hidden from who reads."""
    return not staff and (assignment.feedback == "none" or not assignment.released)


def ending(
    state: str, grading: Grading | None, assignment: Assignment, hidden: bool
) -> tuple[int | None, str]:
    """Return the exit code of `hvdgrade run`, None before the end, and a sentence for the learner."""
    if state != DONE:
        return WITHOUT_RESULT[state]
    if hidden:
        later = assignment.feedback != "none"
        return PASS, "It was graded. " + ("The results are released later." if later else "")
    document = grading.document or {}
    words = outcome(document)["title"]
    if document.get("status") == "graded":
        words += f", {grading.score:g} of {grading.max_score:g} points"
    passed = PASS if grading.verdict == "pass" else FAIL
    code = EXIT_CODES.get(document.get("status"), passed)
    return code, f"{words}." if assignment.feedback == "verdict" else f"{words}. {why(document)}"


def shown_document(
    submission: Submission, grading: Grading | None, staff: bool
) -> ResultDocument | None:
    """Return the result that the reader may see, with the name of its author; None if there is none."""
    assignment, person = submission.assignment, submission.person
    if not grading or not grading.document or is_hidden(assignment, staff):
        return None
    document = dict(grading.document)
    if assignment.feedback == "verdict" and not staff:
        document = {name: document.get(name) for name in VERDICT_FIELDS}
        document |= {"checks": [], "timeline": [], "hints": [], "flags": [], "resources": {}}
    who = {"id": person.email or str(person.id), "student": person.name, "name": person.name}
    document["submission"] = dict(document.get("submission") or {}) | who | {"email": person.email}
    document["batch"] = {"name": f"{submission.person_id}-{submission.number}"}
    return document


def counts(session: Session, now: datetime.datetime) -> list[tuple[str, int]]:
    """Return the numbers of GET /metrics: gradings by state, and workers online."""
    rows = session.execute(select(Grading.state, func.count()).group_by(Grading.state))
    states = {state: count for state, count in rows}
    names = [(f'gradings{{state="{state}"}}', states.get(state, 0)) for state in STATES]
    return [*names, ("workers_online", workers_online(session, now))]
