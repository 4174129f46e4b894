"""The tables of the service. A submission and its place in the queue are rows of one transaction.

The queue is the table `grading`: a row that is "queued" waits, one that is "leased" is being graded until
`lease_until`. Finished rows never change. A regrade inserts new rows, and `grade` says which row counts.
"""

import datetime
import re
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    declared_attr,
    mapped_column,
    relationship,
)

STATES = QUEUED, LEASED, DONE, FAULT, CANCELLED = "queued", "leased", "done", "fault", "cancelled"
ROLES = LEARNER, TA, INSTRUCTOR = "learner", "ta", "instructor"
# Why there is a grading: the first of a submission, one that staff asked for, one after a fault, a regrade.
REASONS = FIRST, AGAIN, AFTER_FAULT, REGRADE = "first", "again", "fault", "regrade"
NUMBER = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only an INTEGER


class Utc(TypeDecorator):
    """A moment in UTC. SQLite stores no time zone, so it is added when a row is read."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime.datetime | None, dialect: Dialect) -> Any:
        """Return the moment in UTC, without a time zone for SQLite."""
        if value is None:
            return None
        value = value.astimezone(datetime.UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime.datetime | None, dialect: Dialect) -> Any:
        """Return the moment with its time zone."""
        return value.replace(tzinfo=datetime.UTC) if value and value.tzinfo is None else value


class Base(DeclarativeBase):
    """The base of all tables. Constraints have names, because a migration can change only named ones."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_N_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime.datetime: Utc, dict[str, Any]: JSON}

    @declared_attr.directive
    def __tablename__(cls) -> str:  # noqa: N805
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()  # BoardEntry: board_entry


def one_of_a_submission(name: str, condition: str) -> Index:
    """Return an index by which a submission has at most one row that meets a condition."""
    where = {"sqlite_where": text(condition), "postgresql_where": text(condition)}
    return Index(name, "submission_id", unique=True, **where)


class Person(Base):
    """Somebody who hands in or grades. `removed_at`: when the personal data were purged."""

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    name: Mapped[str] = mapped_column(default="")
    email: Mapped[str] = mapped_column(default="")
    removed_at: Mapped[datetime.datetime | None]


class Identity(Base):
    """What an issuer calls a person: `hub`, an LTI `iss`, `github:OWNER`, `gitlab:HOST`, `mail`, `local`."""

    issuer: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), index=True)
    person: Mapped[Person] = relationship()


class Course(Base):
    """A class in one term. Pages and programs call it by its `slug`."""

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    slug: Mapped[str] = mapped_column(unique=True)
    title: Mapped[str] = mapped_column(default="")


class Member(Base):
    """The role of a person in a course: one of `ROLES`."""

    course_id: Mapped[int] = mapped_column(ForeignKey("course.id"), primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(default=LEARNER)
    person: Mapped[Person] = relationship()


class Assignment(Base):
    """What is handed in, by when, and how it is graded. A moment that is None sets no limit."""

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    course_id: Mapped[int] = mapped_column(ForeignKey("course.id"), index=True)
    slug: Mapped[str] = mapped_column(unique=True)  # its name in addresses
    title: Mapped[str] = mapped_column(default="")
    profile: Mapped[str] = mapped_column(default="cpu")  # table of profiles.toml
    ranks: Mapped[int] = mapped_column(default=2)
    pool: Mapped[str] = mapped_column(default="default")  # machines of one kind
    require_sandbox: Mapped[str] = mapped_column(default="")  # weakest isolation level
    rules_sha256: Mapped[str] = mapped_column(default="")  # a worker with others gets nothing
    opens: Mapped[datetime.datetime | None]
    due: Mapped[datetime.datetime | None]  # after it a submission is late
    closes: Mapped[datetime.datetime | None]  # after it one is refused
    attempts: Mapped[int | None]  # of a person; None for no limit
    cooldown_s: Mapped[float] = mapped_column(default=0.0)  # between two submissions of a person
    counts: Mapped[str] = mapped_column(default="best")  # or "last"
    feedback: Mapped[str] = mapped_column(default="full")  # what learners see: or "verdict", "none"
    released: Mapped[bool] = mapped_column(default=True)  # whether learners see results at all
    limit_s: Mapped[float] = mapped_column(default=2400.0)  # of one grading
    board: Mapped[bool] = mapped_column(default=False)  # whether there is a leaderboard
    course: Mapped[Course] = relationship()


class Extension(Base):
    """Another deadline or more attempts for one person. None leaves the assignment's own value."""

    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), primary_key=True)
    due: Mapped[datetime.datetime | None]
    closes: Mapped[datetime.datetime | None]
    attempts: Mapped[int | None]
    by: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(default="")


class Submission(Base):
    """One script that one person handed in at one time."""

    id: Mapped[str] = mapped_column(
        primary_key=True
    )  # random, so that nobody guesses another one's
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), index=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), index=True)
    number: Mapped[int]  # counts those of a person for an assignment, from 1
    door: Mapped[str]  # where it was handed in, for example "page", "submit" or "gradescope"
    key: Mapped[str]  # the same each time a client repeats its request
    sha256: Mapped[str]  # of the script
    script: Mapped[bytes] = mapped_column(LargeBinary)
    received: Mapped[datetime.datetime]  # by the clock of the server
    late: Mapped[bool] = mapped_column(default=False)
    replaced_by: Mapped[str | None] = mapped_column(
        ForeignKey("submission.id")
    )  # in the queue, by this one
    assignment: Mapped[Assignment] = relationship()
    person: Mapped[Person] = relationship()
    __table_args__ = (
        UniqueConstraint("assignment_id", "person_id", "number"),
        UniqueConstraint("door", "key"),
    )


class Regrade(Base):
    """A selection of submissions that is graded again. Its results count while `applied` is set."""

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), index=True)
    by: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(default="")
    at: Mapped[datetime.datetime]
    rules_sha256: Mapped[str] = mapped_column(default="")  # "" for those of the assignment
    applied: Mapped[datetime.datetime | None]
    assignment: Mapped[Assignment] = relationship()


class Grading(Base):
    """One run of `hvdgrade run` on a submission, from the moment at which it waits."""

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submission.id"), index=True)
    reason: Mapped[str] = mapped_column(default=FIRST)  # one of REASONS
    rank: Mapped[int] = mapped_column(default=0)  # order of the queue before `id`, see intake.py
    pool: Mapped[str]
    state: Mapped[str] = mapped_column(default=QUEUED)  # one of STATES
    tries: Mapped[int] = mapped_column(
        default=0
    )  # how often a worker took it and was not told to end
    worker_id: Mapped[int | None] = mapped_column(ForeignKey("worker.id"))
    token_sha256: Mapped[str] = mapped_column(
        default=""
    )  # of the lease, whose holder may give a result
    lease_until: Mapped[datetime.datetime | None]
    queued: Mapped[datetime.datetime]
    started: Mapped[datetime.datetime | None]
    finished: Mapped[datetime.datetime | None]
    progress: Mapped[str] = mapped_column(default="")  # the last lines of the grader
    document: Mapped[dict[str, Any] | None]  # the result, see result_document.py
    log: Mapped[str] = mapped_column(default="")  # the end of the grader's output, for staff
    verdict: Mapped[str | None]
    score: Mapped[float | None]
    max_score: Mapped[float | None]
    seconds_to_target: Mapped[float | None]
    rules_sha256: Mapped[str] = mapped_column(default="")  # wanted, "" for any; then those used
    regrade_id: Mapped[int | None] = mapped_column(ForeignKey("regrade.id"), index=True)
    error: Mapped[str] = mapped_column(default="")
    submission: Mapped[Submission] = relationship()
    regrade: Mapped[Regrade | None] = relationship()
    __table_args__ = (
        one_of_a_submission("one_open_grading", "state IN ('queued', 'leased')"),
        Index("order_of_the_queue", "state", "pool", "rank", "id"),
    )

    @property
    def held(self) -> bool:
        """Whether its result does not count, because staff has not applied its regrade."""
        return self.regrade is not None and self.regrade.applied is None


class Grade(Base):
    """What counts for a person: a grading, or points that staff set."""

    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), primary_key=True)
    grading_id: Mapped[int | None] = mapped_column(ForeignKey("grading.id"))
    score: Mapped[float | None]
    max_score: Mapped[float | None]
    override: Mapped[float | None]  # points that staff set instead of `score`
    by: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(default="")
    version: Mapped[int] = mapped_column(default=0)  # grows with every change
    changed: Mapped[datetime.datetime]  # the timestamp of the score for the LMS
    grading: Mapped[Grading | None] = relationship()
    person: Mapped[Person] = relationship()

    @property
    def points(self) -> float | None:
        """The points that count: those that staff set, or else those of the grading."""
        return self.score if self.override is None else self.override


class Post(Base):
    """A score that the LMS must get: the outbox. Written in the transaction that changes the grade.

    Its state is "waiting", "sent", "refused" (by the LMS, with its words in `answer`), "replaced" (by a newer
    version) or "held" (by staff: nothing of that person is sent).
    """

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    assignment_id: Mapped[int]
    person_id: Mapped[int]
    version: Mapped[int]  # of the grade
    score: Mapped[float | None]
    max_score: Mapped[float | None]
    timestamp: Mapped[datetime.datetime]
    state: Mapped[str] = mapped_column(default="waiting")
    tries: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[datetime.datetime]  # not sent before this moment
    answer: Mapped[str] = mapped_column(default="")
    __table_args__ = (
        UniqueConstraint("assignment_id", "person_id", "version"),
        ForeignKeyConstraint(
            ["assignment_id", "person_id"], ["grade.assignment_id", "grade.person_id"]
        ),
        Index("posts_to_send", "state", "next_at"),
    )


class LineItem(Base):
    """Where the LMS takes the scores of an assignment: stored when somebody comes from the LMS."""

    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), primary_key=True)
    issuer: Mapped[str]
    client_id: Mapped[str]
    url: Mapped[str]
    token_url: Mapped[str]


class Appeal(Base):
    """A learner's question about a result. `state`: "open", "kept" or "changed"."""

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submission.id"), index=True)
    text: Mapped[str]
    state: Mapped[str] = mapped_column(default="open")
    answer: Mapped[str] = mapped_column(default="")
    by: Mapped[str] = mapped_column(default="")
    at: Mapped[datetime.datetime]
    submission: Mapped[Submission] = relationship()
    __table_args__ = (one_of_a_submission("one_open_appeal", "state = 'open'"),)


class Worker(Base):
    """A process that takes gradings of one pool. `refused`: why it gets none, in one sentence."""

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    token_id: Mapped[int] = mapped_column(ForeignKey("token.id"))
    name: Mapped[str]
    pool: Mapped[str]
    slots: Mapped[int] = mapped_column(default=1)
    version: Mapped[str] = mapped_column(default="")
    rules: Mapped[dict[str, Any]] = mapped_column(default=dict)
    hardware: Mapped[str] = mapped_column(default="")
    tier: Mapped[str] = mapped_column(default="")
    gpus: Mapped[int] = mapped_column(default=0)
    seen: Mapped[datetime.datetime]
    refused: Mapped[str] = mapped_column(default="")
    __table_args__ = (UniqueConstraint("token_id", "name"),)


class Token(Base):
    """A secret of a program or a session of a browser; the table holds only its hash.

    Its kind is "person" (hands in and reads as `person_id`), "door" (hands in for others to `assignment_id`),
    "worker" (takes gradings of `pool`), "session" (a browser) or "link" (becomes a session, once).
    """

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    sha256: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]
    person_id: Mapped[int | None] = mapped_column(ForeignKey("person.id"))
    assignment_id: Mapped[int | None] = mapped_column(ForeignKey("assignment.id"))
    door: Mapped[str] = mapped_column(default="")
    pool: Mapped[str] = mapped_column(default="")
    created: Mapped[datetime.datetime]
    expires: Mapped[datetime.datetime | None]
    revoked: Mapped[datetime.datetime | None]
    person: Mapped[Person | None] = relationship()


class Event(Base):
    """What somebody did, for the log of a course. Rows are only added."""

    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    at: Mapped[datetime.datetime]
    course_id: Mapped[int | None] = mapped_column(ForeignKey("course.id"), index=True)
    who: Mapped[str]
    what: Mapped[str]
    on: Mapped[str] = mapped_column(default="")
    detail: Mapped[str] = mapped_column(default="")


class BoardEntry(Base):
    """A person who chose to appear on the leaderboard of an assignment, under a pseudonym."""

    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), primary_key=True)
    pseudonym: Mapped[str]
