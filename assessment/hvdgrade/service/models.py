"""The tables of the service. A submission and its place in the queue are rows of one transaction.

The queue is the table `grading`: a row that is "queued" waits, one that is "leased" is being graded until
`lease_until`. Finished rows never change. A regrade inserts new rows, and `grade` says which row counts.
"""

import datetime
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
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

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


class Person(Base):
    """Somebody who hands in or grades. `removed_at`: when the personal data were purged."""

    __tablename__ = "person"
    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    name: Mapped[str] = mapped_column(default="")
    email: Mapped[str] = mapped_column(default="")
    removed_at: Mapped[datetime.datetime | None]


class Identity(Base):
    """What an issuer calls a person: `hub`, an LTI `iss`, `github:OWNER`, `gitlab:HOST`, `mail`, `local`."""

    __tablename__ = "identity"
    issuer: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), index=True)
    person: Mapped[Person] = relationship()


class Course(Base):
    """A class in one term. Pages and programs call it by its `slug`."""

    __tablename__ = "course"
    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    slug: Mapped[str] = mapped_column(unique=True)
    title: Mapped[str] = mapped_column(default="")


class Member(Base):
    """The role of a person in a course: one of `ROLES`."""

    __tablename__ = "member"
    course_id: Mapped[int] = mapped_column(ForeignKey("course.id"), primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(default=LEARNER)
    person: Mapped[Person] = relationship()


class Assignment(Base):
    """What is handed in, by when, and how it is graded.

    Attributes:
        slug: its name in addresses, unique in the service.
        profile: table of profiles.toml.
        pool: name of the machines that grade it, all of one kind.
        require_sandbox: isolation level below which nothing is graded; "" for no requirement.
        rules_sha256: the rules of the profile when it was opened. A worker with others gets nothing.
        opens, due, closes: moments; None for no limit. After `due` a submission is late, and after `closes`
            it is refused.
        attempts: largest number of submissions of a person that count as attempts; None for no limit.
        cooldown_s: seconds between two submissions of a person.
        counts: "best" or "last".
        feedback: what a learner sees: "full", "verdict" or "none".
        released: whether learners see results at all; an exam begins with False.
        limit_s: time limit of one grading in seconds.
        board: whether there is a leaderboard, on which a person appears only by their own choice.
    """

    __tablename__ = "assignment"
    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    course_id: Mapped[int] = mapped_column(ForeignKey("course.id"), index=True)
    slug: Mapped[str] = mapped_column(unique=True)
    title: Mapped[str] = mapped_column(default="")
    profile: Mapped[str] = mapped_column(default="cpu")
    ranks: Mapped[int] = mapped_column(default=2)
    pool: Mapped[str] = mapped_column(default="default")
    require_sandbox: Mapped[str] = mapped_column(default="")
    rules_sha256: Mapped[str] = mapped_column(default="")
    opens: Mapped[datetime.datetime | None]
    due: Mapped[datetime.datetime | None]
    closes: Mapped[datetime.datetime | None]
    attempts: Mapped[int | None]
    cooldown_s: Mapped[float] = mapped_column(default=0.0)
    counts: Mapped[str] = mapped_column(default="best")
    feedback: Mapped[str] = mapped_column(default="full")
    released: Mapped[bool] = mapped_column(default=True)
    limit_s: Mapped[float] = mapped_column(default=2400.0)
    board: Mapped[bool] = mapped_column(default=False)
    course: Mapped[Course] = relationship()


class Extension(Base):
    """Another deadline or more attempts for one person. None leaves the assignment's own value."""

    __tablename__ = "extension"
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), primary_key=True)
    due: Mapped[datetime.datetime | None]
    closes: Mapped[datetime.datetime | None]
    attempts: Mapped[int | None]
    by: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(default="")


class Submission(Base):
    """One script that one person handed in at one time.

    Attributes:
        id: random text, so that nobody can guess another one's.
        number: counts the submissions of a person for an assignment, from 1.
        door: where it was handed in, for example "page", "submit" or "gradescope".
        key: chosen by the client, the same each time it repeats a request.
        sha256: hash of `script`.
        received: moment of the request, by the clock of the server.
        replaced_by: the newer submission that took its place in the queue. It then costs no attempt.
    """

    __tablename__ = "submission"
    id: Mapped[str] = mapped_column(primary_key=True)
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), index=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), index=True)
    number: Mapped[int]
    door: Mapped[str]
    key: Mapped[str]
    sha256: Mapped[str]
    script: Mapped[bytes] = mapped_column(LargeBinary)
    received: Mapped[datetime.datetime]
    late: Mapped[bool] = mapped_column(default=False)
    replaced_by: Mapped[str | None] = mapped_column(ForeignKey("submission.id"))
    assignment: Mapped[Assignment] = relationship()
    person: Mapped[Person] = relationship()
    __table_args__ = (
        UniqueConstraint("assignment_id", "person_id", "number"),
        UniqueConstraint("door", "key"),
    )


class Regrade(Base):
    """A selection of submissions that is graded again. Its results count while `applied` is set.

    Attributes:
        rules_sha256: the rules to grade with; "" for those of the assignment. Once it is applied, later
            submissions are graded with them, too.
    """

    __tablename__ = "regrade"
    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), index=True)
    by: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(default="")
    at: Mapped[datetime.datetime]
    rules_sha256: Mapped[str] = mapped_column(default="")
    applied: Mapped[datetime.datetime | None]
    assignment: Mapped[Assignment] = relationship()


class Grading(Base):
    """One run of `hvdgrade run` on a submission, from the moment at which it waits.

    Attributes:
        reason: one of `REASONS`.
        rank: the place in the order of the queue, before `id`: gradings that this person has started for this
            assignment (at most 9), or 10 for a regrade.
        state: one of `STATES`.
        tries: number of times that a worker has taken it, without those that were told to end.
        token_sha256: hash of the lease's token. Only its holder may give a result.
        progress: the last lines of the grader, at most 4 kB.
        document: the result (see result_document.py); None until it is done.
        log: the end of the grader's output, for staff.
        rules_sha256: while it is open, the rules that the worker must have ("" for any); then those of the
            document.
        regrade_id: the regrade to which it belongs; None for every other reason.
    """

    __tablename__ = "grading"
    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submission.id"), index=True)
    reason: Mapped[str] = mapped_column(default=FIRST)
    rank: Mapped[int] = mapped_column(default=0)
    pool: Mapped[str]
    state: Mapped[str] = mapped_column(default=QUEUED)
    tries: Mapped[int] = mapped_column(default=0)
    worker_id: Mapped[int | None] = mapped_column(ForeignKey("worker.id"))
    token_sha256: Mapped[str] = mapped_column(default="")
    lease_until: Mapped[datetime.datetime | None]
    queued: Mapped[datetime.datetime]
    started: Mapped[datetime.datetime | None]
    finished: Mapped[datetime.datetime | None]
    progress: Mapped[str] = mapped_column(default="")
    document: Mapped[dict[str, Any] | None]
    log: Mapped[str] = mapped_column(default="")
    verdict: Mapped[str | None]
    score: Mapped[float | None]
    max_score: Mapped[float | None]
    seconds_to_target: Mapped[float | None]
    rules_sha256: Mapped[str] = mapped_column(default="")
    regrade_id: Mapped[int | None] = mapped_column(ForeignKey("regrade.id"), index=True)
    error: Mapped[str] = mapped_column(default="")
    submission: Mapped[Submission] = relationship()
    regrade: Mapped[Regrade | None] = relationship()
    __table_args__ = (
        Index(
            "one_open_grading",
            "submission_id",
            unique=True,
            sqlite_where=text("state IN ('queued', 'leased')"),
            postgresql_where=text("state IN ('queued', 'leased')"),
        ),
        Index("order_of_the_queue", "state", "pool", "rank", "id"),
    )

    @property
    def held(self) -> bool:
        """Whether its result does not count, because staff has not applied its regrade."""
        return self.regrade is not None and self.regrade.applied is None


class Grade(Base):
    """What counts for a person: a grading, or points that staff set. `version` grows with every change.

    Attributes:
        grading_id: the grading that counts; None before there is one.
        override: points of `max_score` that staff set instead; None for none.
        changed: moment of the last change, which the LMS gets as the score's timestamp.
    """

    __tablename__ = "grade"
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), primary_key=True)
    grading_id: Mapped[int | None] = mapped_column(ForeignKey("grading.id"))
    score: Mapped[float | None]
    max_score: Mapped[float | None]
    override: Mapped[float | None]
    by: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(default="")
    version: Mapped[int] = mapped_column(default=0)
    changed: Mapped[datetime.datetime]
    grading: Mapped[Grading | None] = relationship()
    person: Mapped[Person] = relationship()

    @property
    def points(self) -> float | None:
        """The points that count: those that staff set, or else those of the grading."""
        return self.score if self.override is None else self.override


class Post(Base):
    """A score that the LMS must get: the outbox. Written in the transaction that changes the grade.

    Attributes:
        version: `Grade.version` that it sends. A waiting post of an older version is not sent any more.
        state: "waiting", "sent", "refused" (by the LMS, with its words in `answer`), "replaced" (by a newer
            version) or "held" (by staff: nothing of that person is sent).
        next_at: not before this moment.
    """

    __tablename__ = "post"
    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    assignment_id: Mapped[int]
    person_id: Mapped[int]
    version: Mapped[int]
    score: Mapped[float | None]
    max_score: Mapped[float | None]
    timestamp: Mapped[datetime.datetime]
    state: Mapped[str] = mapped_column(default="waiting")
    tries: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[datetime.datetime]
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

    __tablename__ = "line_item"
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), primary_key=True)
    issuer: Mapped[str]
    client_id: Mapped[str]
    deployment: Mapped[str] = mapped_column(default="")
    url: Mapped[str]
    token_url: Mapped[str]


class Appeal(Base):
    """A learner's question about a result. `state`: "open", "kept" or "changed"."""

    __tablename__ = "appeal"
    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submission.id"), index=True)
    text: Mapped[str]
    state: Mapped[str] = mapped_column(default="open")
    answer: Mapped[str] = mapped_column(default="")
    by: Mapped[str] = mapped_column(default="")
    at: Mapped[datetime.datetime]
    submission: Mapped[Submission] = relationship()
    __table_args__ = (
        Index(
            "one_open_appeal",
            "submission_id",
            unique=True,
            sqlite_where=text("state = 'open'"),
            postgresql_where=text("state = 'open'"),
        ),
    )


class Worker(Base):
    """A process that takes gradings of one pool. `refused`: why it gets none, in one sentence."""

    __tablename__ = "worker"
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
    draining: Mapped[bool] = mapped_column(default=False)
    refused: Mapped[str] = mapped_column(default="")
    __table_args__ = (UniqueConstraint("token_id", "name"),)


class Token(Base):
    """A secret of a program or a session of a browser; the table holds only its hash.

    Attributes:
        kind: "person" (hands in and reads as `person_id`), "door" (hands in for others to `assignment_id`),
            "worker" (takes gradings of `pool`), "session" (a browser) or "link" (becomes a session, once).
        door: name of the door, for a door's token.
    """

    __tablename__ = "token"
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

    __tablename__ = "event"
    id: Mapped[int] = mapped_column(NUMBER, primary_key=True)
    at: Mapped[datetime.datetime]
    course_id: Mapped[int | None] = mapped_column(ForeignKey("course.id"), index=True)
    who: Mapped[str]
    what: Mapped[str]
    on: Mapped[str] = mapped_column(default="")
    detail: Mapped[str] = mapped_column(default="")


class BoardEntry(Base):
    """A person who chose to appear on the leaderboard of an assignment, under a pseudonym."""

    __tablename__ = "board_entry"
    assignment_id: Mapped[int] = mapped_column(ForeignKey("assignment.id"), primary_key=True)
    person_id: Mapped[int] = mapped_column(ForeignKey("person.id"), primary_key=True)
    pseudonym: Mapped[str]
