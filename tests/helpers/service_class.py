"""A course of the service with one assignment, learners and a worker, for tests."""

import datetime
import hashlib
import itertools
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from hvdgrade.service import intake, queue
from hvdgrade.service.models import (
    Assignment,
    Course,
    Grading,
    Identity,
    Member,
    Person,
    Token,
    Worker,
)

NOW = datetime.datetime(2026, 11, 2, 12, 0, tzinfo=datetime.UTC)
RULES = "a" * 64


class ServiceClass:
    """What a new database gets. `grade` hands in for a person and grades at once."""

    def __init__(self, session: Session, learners: int = 3) -> None:
        self.session, self.keys = session, itertools.count()
        self.course = Course(slug="dl", title="Deep learning")
        self.assignment = Assignment(slug="cifar", course=self.course, rules_sha256=RULES)
        self.people = [
            Person(name=f"Person {i}", email=f"p{i}@example.edu") for i in range(learners)
        ]
        session.add_all([self.course, self.assignment, *self.people])
        session.flush()
        for person in self.people:
            session.add(Member(course_id=self.course.id, person_id=person.id))
            session.add(Identity(issuer="mail", subject=person.email, person_id=person.id))
        self.worker = self.new_worker("first")

    def new_worker(self, name: str, **about: Any) -> Worker:
        """Return a worker that fits the assignment, unless `about` says otherwise."""
        token = Token(sha256=name.rjust(64), kind="worker", pool="default", created=NOW)
        self.session.add(token)
        self.session.flush()
        about = {
            "seen": NOW,
            "pool": "default",
            "tier": "bubblewrap",
            "rules": {"cpu": RULES},
        } | about
        worker = Worker(token_id=token.id, name=name, **about)
        self.session.add(worker)
        self.session.flush()
        return worker

    def submit(self, number: int, now: datetime.datetime = NOW, **other: Any) -> intake.Receipt:
        """Hand in a new script for the person with this number."""
        key = other.pop("key", f"key {next(self.keys)}")
        script = other.pop("script", f"print({key!r})".encode())
        values = {"assignment": self.assignment, "person": self.people[number], "door": "page"}
        return intake.submit(self.session, **(values | other), key=key, script=script, now=now)

    def finish(
        self, lease: queue.Lease, score: float = 90.0, now: datetime.datetime = NOW, **about
    ) -> bool:
        """Give a result for a lease."""
        result = document(lease.script, score, **about)
        return queue.finish(self.session, lease.grading, lease.token, result, "log", now)

    def grade(self, number: int, score: float, now: datetime.datetime = NOW) -> intake.Receipt:
        """Hand in and grade."""
        receipt = self.submit(number, now)
        lease = queue.claim(self.session, self.worker, now)
        assert lease.submission == receipt.submission.id
        assert self.finish(lease, score, now)
        return receipt

    def gradings(self) -> list[Grading]:
        """Return all gradings as the database has them."""
        self.session.flush()
        query = select(Grading).order_by(Grading.id).execution_options(populate_existing=True)
        return list(self.session.scalars(query))


def document(script: bytes, score: float | None = 90.0, rules: str = RULES, **about: Any) -> dict:
    """Return a result document with what the service reads of it."""
    return {
        "schema": "hvdgrade/1",
        "submission": {"id": "s", "sha256": hashlib.sha256(script).hexdigest()},
        "grader": {"rules_sha256": rules, "profile": "cpu"},
        "status": "graded",
        "verdict": "pass" if score and score >= 50 else "fail",
        "score": score,
        "max_score": 100.0,
        "seconds_to_target": 12.5,
    } | about
