"""The queue of a pool: workers take gradings of its table, and give back results.

A lease is lost after `LEASE_SECONDS` without a beat, and its token is then worth nothing: the worker that had
it must end its run. A grading that lost its worker `MOST_TRIES` times is a fault. It does not count if the
worker was told to end, because an update of all workers is no fault of a grading.
"""

import datetime
import json
import secrets
from dataclasses import dataclass

from sqlalchemy import and_, exists, false, or_, select, update
from sqlalchemy.orm import Session, aliased

from hvdgrade.batch.worker import is_machine_fault
from hvdgrade.output.text import plain
from hvdgrade.result_document import NotAResult, ResultDocument
from hvdgrade.sandbox.tiers import TIERS
from hvdgrade.service import grades
from hvdgrade.service.access import digest
from hvdgrade.service.models import (
    CANCELLED,
    DONE,
    FAULT,
    LEASED,
    QUEUED,
    Assignment,
    Grading,
    Person,
    Submission,
    Worker,
)

LEASE_SECONDS = 60
MOST_TRIES = 3
PROGRESS_CHARACTERS, LOG_CHARACTERS, REASON_CHARACTERS = 4096, 20_000, 1000


@dataclass(frozen=True)
class Lease:
    """What a worker gets for one grading. Only who has the token may give its result."""

    grading: int
    token: str
    submission: str
    script: bytes
    profile: str
    ranks: int
    limit_s: float
    require_sandbox: str | None
    hints: bool
    rank: int


def claim(session: Session, worker: Worker, now: datetime.datetime) -> Lease | None:
    """Lease the first grading that a worker can do, or return None.

    If gradings wait but the worker fits none of them, `worker.refused` says why. A person has at most one
    grading that runs.
    """
    worker.seen, worker.refused = now, ""
    session.flush()
    waiting = (
        select(Grading)
        .join(Submission, Grading.submission_id == Submission.id)
        .join(Person, Submission.person_id == Person.id)
        .join(Assignment, Submission.assignment_id == Assignment.id)
        .where(Grading.state == QUEUED, Grading.pool == worker.pool)
        .order_by(Grading.rank, Grading.id)
        .limit(1)
    )
    running: set[int] = set()
    while grading := session.scalar(
        waiting.where(_fits(worker), ~_runs(Submission.person_id), Person.id.not_in(running))
        .with_for_update(key_share=True, skip_locked=True, of=(Grading, Person))
    ):  # fmt: skip
        person = grading.submission.person_id
        # The query saw the table as it was before it got the person's lock, this one sees what is true now.
        if not session.scalar(select(_runs(person))):
            return _lease(grading, worker, now)
        running.add(person)
    first = session.scalar(waiting)
    if first and not session.scalar(waiting.where(_fits(worker))):
        worker.refused = _why_not(worker, first)
    return None


def _lease(grading: Grading, worker: Worker, now: datetime.datetime) -> Lease:
    token = secrets.token_urlsafe(32)
    grading.state, grading.worker_id, grading.token_sha256 = LEASED, worker.id, digest(token)
    grading.started, grading.lease_until = now, now + datetime.timedelta(seconds=LEASE_SECONDS)
    grading.tries += 1
    grading.progress = ""
    submission, assignment = grading.submission, grading.submission.assignment
    return Lease(
        grading.id, token, submission.id, submission.script, assignment.profile, assignment.ranks,
        assignment.limit_s, assignment.require_sandbox or None, assignment.feedback == "full", grading.rank,
    )  # fmt: skip


def beat(session: Session, grading: int, token: str, progress: str, now: datetime.datetime) -> bool:
    """Extend a lease, and store the last lines of the run; return False if the lease is lost."""
    row = _held(session, grading, token)
    if not row or row.state != LEASED:
        return False
    row.lease_until = now + datetime.timedelta(seconds=LEASE_SECONDS)
    row.progress = _end(progress, PROGRESS_CHARACTERS)
    _see(session, row, now)
    return True


def finish(
    session: Session,
    grading: int,
    token: str,
    document: ResultDocument,
    log: str,
    now: datetime.datetime,
) -> bool:
    """Store a result and compute the grade that follows; return False if the lease is lost.

    Returns True again if the request is repeated. After a fault of the grader the submission is graded again.

    Args:
        document: what `result_document.read` has returned.

    Raises:
        NotAResult: the document is of another script, of other rules, or has numbers that are not finite.
    """
    row = _held(session, grading, token)
    if row is None or row.state != LEASED:
        return row is not None  # a token stays after the result, and not when a lease is lost
    _must_match(row, document)
    _see(session, row, now)
    row.log = _end(log, LOG_CHARACTERS)
    if is_machine_fault(document):
        _again(row, plain(document.get("reason") or "the grader gave no reason"), now)
        return True
    row.state, row.finished, row.lease_until, row.document = DONE, now, None, document
    row.verdict, row.score, row.max_score, row.seconds_to_target = (
        document.get(name) for name in ("verdict", "score", "max_score", "seconds_to_target")
    )
    row.rules_sha256 = (document.get("grader") or {}).get("rules_sha256") or row.rules_sha256
    session.flush()
    grades.settle(session, row.submission.assignment, row.submission.person, now)
    return True


def give_back(
    session: Session, grading: int, token: str, why: str, worker_ends: bool, now: datetime.datetime
) -> bool:
    """End a lease without a result; return False if it is lost already.

    Args:
        why: the worker's reason, for staff.
        worker_ends: whether the only reason is that the worker was told to end. Then it counts as no try.
    """
    row = _held(session, grading, token)
    if not row or row.state != LEASED:
        return False
    row.tries -= worker_ends
    _again(row, f"its worker gave it back, because {_end(why, REASON_CHARACTERS)}", now)
    row.token_sha256 = ""
    _see(session, row, now)
    return True


def expire(session: Session, now: datetime.datetime) -> int:
    """End the leases that ran out, and return how many there were."""
    query = select(Grading).where(Grading.state == LEASED, Grading.lease_until < now)
    lost = session.scalars(query.order_by(Grading.id).with_for_update(skip_locked=True)).all()
    for row in lost:
        _again(row, f"its worker did not answer for {LEASE_SECONDS} s", now)
        row.token_sha256 = ""
    session.flush()
    return len(lost)


def extend_all(session: Session, now: datetime.datetime) -> None:
    """Extend all leases after a time in which no worker could be heard, so that each can beat again."""
    leased = update(Grading).where(Grading.state == LEASED)
    session.execute(leased.values(lease_until=now + datetime.timedelta(seconds=LEASE_SECONDS)))


def cancel(session: Session, grading: int, now: datetime.datetime) -> bool:
    """End a grading that waits or runs; return False if it has ended already."""
    row = session.get(Grading, grading, with_for_update=True, populate_existing=True)
    if row is None or row.state not in (QUEUED, LEASED):
        return False
    row.state, row.finished, row.lease_until, row.token_sha256 = CANCELLED, now, None, ""
    session.flush()
    return True


def _fits(worker: Worker):
    """Return the condition that a worker has the profile, rules and isolation that a grading needs."""
    same = [
        and_(Assignment.profile == profile, Grading.rules_sha256.in_(("", sha256)))
        for profile, sha256 in worker.rules.items()
    ]
    weaker = TIERS[TIERS.index(worker.tier) :] if worker.tier in TIERS else ()
    return and_(or_(false(), *same), Assignment.require_sandbox.in_(("", *weaker)))


def _why_not(worker: Worker, grading: Grading) -> str:
    assignment = grading.submission.assignment
    if assignment.profile not in worker.rules:
        return (
            f"{assignment.slug} has the profile {assignment.profile}, which this worker cannot grade: it "
            "sees no GPU, or its version has no such profile."
        )
    if grading.rules_sha256 not in ("", worker.rules.get(assignment.profile)):
        return (
            f"{assignment.slug} was opened with other rules of the profile {assignment.profile} than this "
            f"worker has (version {worker.version or 'unknown'}): install the version that opened it."
        )
    return (
        f"{assignment.slug} needs the isolation level {assignment.require_sandbox}, and this worker has "
        f"{worker.tier or 'none'}: `hvdgrade doctor` on it says why."
    )


def _runs(person):
    """Return the condition that a person has a grading that runs."""
    other, its = aliased(Grading), aliased(Submission)
    return exists().where(
        other.state == LEASED, other.submission_id == its.id, its.person_id == person
    )


def _held(session: Session, grading: int, token: str) -> Grading | None:
    """Return a grading, locked, if the token is that of its last lease."""
    query = select(Grading).where(Grading.id == grading, Grading.token_sha256 == digest(token))
    return session.scalar(query.with_for_update().execution_options(populate_existing=True))


def _again(row: Grading, error: str, now: datetime.datetime) -> None:
    """Let a grading wait again, or make it a fault after the last try."""
    row.error, row.lease_until = error, None
    row.state = QUEUED if row.tries < MOST_TRIES else FAULT
    row.finished = now if row.state == FAULT else None


def _must_match(row: Grading, document: ResultDocument) -> None:
    """Check that a document can be the result of this grading."""
    try:
        json.dumps(document, allow_nan=False)
    except ValueError:
        raise NotAResult("not a result of hvdgrade: it has a number that is not finite") from None
    if document["submission"].get("sha256") not in (None, row.submission.sha256):
        raise NotAResult("the result is of another script than the one that was leased")
    rules = (document.get("grader") or {}).get("rules_sha256")
    if document["status"] == "graded" and row.rules_sha256 not in ("", rules):
        raise NotAResult("the result was made with other rules than those of the assignment")


def _see(session: Session, row: Grading, now: datetime.datetime) -> None:
    """Write down that the worker of a grading is online. It claims nothing while its slots are busy."""
    if worker := session.get(Worker, row.worker_id):
        worker.seen = now
    session.flush()


def _end(text: str, most: int) -> str:
    return plain(text[-most:], most)
