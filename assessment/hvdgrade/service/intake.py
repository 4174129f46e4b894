"""A submission is handed in: whether it is accepted, and its place in the queue, in one transaction.

Deadline, attempts and cool-down are judged at the moment at which the server received the request. A client
makes a key once a press and repeats the request until it has an answer. The same key gives the same
submission.
"""

import datetime
import hashlib
import math
import secrets
from dataclasses import dataclass

from sqlalchemy import exists, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from hvdgrade import HvdgradeError
from hvdgrade.service.models import (
    AFTER_FAULT,
    CANCELLED,
    FAULT,
    FIRST,
    QUEUED,
    REGRADE,
    Assignment,
    Extension,
    Grading,
    Member,
    Person,
    Regrade,
    Submission,
)

MOST_BYTES = 64_000
MOST_KEY_CHARACTERS = 100
LAST_RANK, REGRADE_RANK = 9, 10


class Refused(HvdgradeError):
    """A request is refused. The message says why in one sentence.

    `status` is that of the HTTP response. After `retry_after` seconds the request may be repeated.
    """

    def __init__(self, status: int, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after


@dataclass(frozen=True)
class Receipt:
    """An accepted submission. `created` is False if the same request was accepted before."""

    submission: Submission
    created: bool


def submit(
    session: Session,
    assignment: Assignment,
    person: Person,
    door: str,
    key: str,
    script: bytes,
    now: datetime.datetime,
) -> Receipt:
    """Accept a script, and queue it.

    A submission takes the place in the queue of an older one of the same person that still waits. The older
    one then costs no attempt.

    Args:
        door: where it was handed in, for example "page" or "submit".
        key: the same each time a client repeats its request.

    Raises:
        Refused: 400 no key or script, 403 not open or not a member, 409 the key belongs to another
            submission, 413 too large, 429 no attempt is left, or too soon after the last one.
    """
    if not 1 <= len(key) <= MOST_KEY_CHARACTERS:
        raise Refused(400, f"an Idempotency-Key has 1 to {MOST_KEY_CHARACTERS} characters.")
    if not script.strip():
        raise Refused(400, "there is no script: choose a file, or send its bytes as the body.")
    if len(script) > MOST_BYTES:
        raise Refused(
            413, f"a script has at most {MOST_BYTES:,} bytes, and this one has {len(script):,}."
        )
    member = select(Member).filter_by(course_id=assignment.course_id, person_id=person.id)
    # Holding this row lets one request of a person follow the other.
    if session.scalar(member.with_for_update()) is None:
        raise Refused(
            403, f"you are not a member of the course of {assignment.slug}: ask its staff."
        )
    sha256 = hashlib.sha256(script).hexdigest()
    if known := session.scalar(select(Submission).filter_by(door=door, key=key)):
        same = (assignment.id, person.id, sha256)
        if (known.assignment_id, known.person_id, known.sha256) != same:
            raise _used(key)
        return Receipt(known, created=False)
    late = _is_late(session, assignment, person, now)
    waiting = _waiting(session, assignment, person, late)
    _must_have_attempts(session, assignment, person, waiting)
    last = select(func.max(Submission.number), func.max(Submission.received))
    number, received = session.execute(_of(last, assignment, person)).one()
    _must_be_cool(assignment, received, now)
    new = Submission(
        id=secrets.token_hex(12), assignment=assignment, person=person, number=(number or 0) + 1,
        door=door, key=key, sha256=sha256, script=script, received=now, late=late,
    )  # fmt: skip
    try:
        with session.begin_nested():
            session.add(new)
    except IntegrityError:  # another person's request with this key was accepted at the same moment
        raise _used(key) from None
    if waiting:
        waiting.submission.replaced_by = new.id
        waiting.submission, waiting.reason = new, FIRST
        # What follows was of the older script.
        waiting.tries, waiting.started, waiting.token_sha256 = 0, None, ""
        waiting.error = waiting.progress = ""
    else:
        enqueue(session, new, FIRST, now)
    session.flush()
    return Receipt(new, created=True)


def enqueue(
    session: Session,
    submission: Submission,
    reason: str,
    now: datetime.datetime,
    regrade: Regrade | None = None,
) -> Grading:
    """Put a submission at its place in the queue, and return the grading that waits.

    The place is the number of gradings that this person has started for this assignment, at most 9, so that
    nobody's tenth attempt delays somebody's first. A regrade comes last.
    """
    assignment = submission.assignment
    rules = (regrade and regrade.rules_sha256) or rules_of(session, assignment)
    grading = Grading(
        submission=submission, reason=reason, pool=assignment.pool, queued=now, rules_sha256=rules,
        rank=REGRADE_RANK if reason == REGRADE else _started(session, submission), regrade=regrade,
    )  # fmt: skip
    session.add(grading)
    session.flush()
    return grading


def rules_of(session: Session, assignment: Assignment) -> str:
    """Return the hash of the rules that grade now: those of the last applied regrade, if there is one."""
    applied = select(Regrade.rules_sha256).where(
        Regrade.assignment_id == assignment.id,
        Regrade.applied.is_not(None),
        Regrade.rules_sha256 != "",
    )
    last = session.scalar(applied.order_by(Regrade.applied.desc(), Regrade.id.desc()).limit(1))
    return last or assignment.rules_sha256


def deadlines(
    session: Session, assignment: Assignment, person: Person
) -> tuple[datetime.datetime | None, datetime.datetime | None]:
    """Return after which moments a submission of this person is late, and is refused; None for no limit."""
    own = session.get(Extension, (assignment.id, person.id)) or Extension()
    due, closes = own.due or assignment.due, own.closes or assignment.closes
    if own.due and not own.closes and closes:
        closes = max(closes, own.due)
    return due, closes


def attempts_used(session: Session, assignment: Assignment, person: Person) -> int:
    """Return how many submissions of a person count as attempts.

    One that was replaced in the queue has no grading, and one that only ended in faults of the grader has no
    other. Neither counts.
    """
    counts = exists().where(
        Grading.submission_id == Submission.id, Grading.state.not_in((FAULT, CANCELLED))
    )
    made = _of(select(func.count()), assignment, person).where(counts)
    return session.scalar(made)


def attempts_allowed(session: Session, assignment: Assignment, person: Person) -> int | None:
    """Return how many attempts a person has; None for no limit."""
    own = session.get(Extension, (assignment.id, person.id))
    return own.attempts if own and own.attempts is not None else assignment.attempts


def _of(query, assignment: Assignment, person: Person):
    return query.where(Submission.assignment_id == assignment.id, Submission.person_id == person.id)


def _used(key: str) -> Refused:
    return Refused(
        409, f"the key {key!r} belongs to another submission: make a new one for each script."
    )


def _is_late(
    session: Session, assignment: Assignment, person: Person, now: datetime.datetime
) -> bool:
    """Return whether a submission is late now; refuse it if the assignment is not open."""
    due, closes = deadlines(session, assignment, person)
    if assignment.opens and now < assignment.opens:
        raise Refused(403, f"{assignment.slug} opens on {assignment.opens:%Y-%m-%d at %H:%M} UTC.")
    if closes and now > closes:
        raise Refused(403, f"{assignment.slug} closed on {closes:%Y-%m-%d at %H:%M} UTC.")
    return due is not None and now > due


def _waiting(
    session: Session, assignment: Assignment, person: Person, late: bool
) -> Grading | None:
    """Return the grading whose place a new submission takes. A late one takes none of one that is in time."""
    query = select(Grading).join(Submission).where(
        Grading.state == QUEUED, Grading.reason.in_((FIRST, AFTER_FAULT)), Submission.late.in_((late, True))
    )  # fmt: skip
    return session.scalar(
        _of(query, assignment, person).order_by(Grading.id).with_for_update(of=Grading)
    )


def _must_have_attempts(
    session: Session, assignment: Assignment, person: Person, waiting: Grading | None
) -> None:
    allowed = attempts_allowed(session, assignment, person)
    used = attempts_used(session, assignment, person) - bool(waiting)
    if allowed is not None and used >= allowed:
        raise Refused(429, f"you have used all {allowed} attempts for {assignment.slug}.")


def _must_be_cool(
    assignment: Assignment, received: datetime.datetime | None, now: datetime.datetime
) -> None:
    passed = max(0.0, (now - received).total_seconds()) if received else math.inf
    left = math.ceil(max(0.0, assignment.cooldown_s - passed))
    if left:
        raise Refused(429, f"wait {left} s before you hand in again.", retry_after=left)


def _started(session: Session, submission: Submission) -> int:
    """Return the rank of a submission: gradings that its person has started for this assignment."""
    own = select(func.count()).join_from(Grading, Submission).where(
        Grading.started.is_not(None), Grading.reason != REGRADE
    )  # fmt: skip
    return min(session.scalar(_of(own, submission.assignment, submission.person)), LAST_RANK)
