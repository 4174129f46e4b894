"""Copies of the database, and the end of a course: its personal data are removed.

A copy of SQLite is a database itself: give its path to --database. A copy of PostgreSQL is restored into an
empty database by `pg_restore --dbname NAME FILE`. Gradings that ran when the copy was made wait again after
the restore, once their leases have run out.
"""

import contextlib
import datetime
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import URL, ColumnElement, Engine, and_, delete, exists, func, or_, select, update
from sqlalchemy.orm import Session

from hvdgrade.service.database import DatabaseProblem
from hvdgrade.service.models import (
    Appeal,
    Assignment,
    BoardEntry,
    Course,
    Event,
    Extension,
    Grade,
    Grading,
    Identity,
    Member,
    Person,
    Regrade,
    Submission,
    Token,
)

DUMP_SECONDS = 3600


def backup(engine: Engine, file: Path, seconds: float = DUMP_SECONDS) -> None:
    """Write a copy of the database, also while the service runs, that only its owner can read.

    Args:
        file: its place, completely written or not at all.
        seconds: time limit.

    Raises:
        DatabaseProblem: the copy cannot be written, or takes too long.
    """
    copy = _copy_sqlite if engine.dialect.name == "sqlite" else _dump_postgresql
    try:
        with _private(file) as unfinished:
            copy(engine.url, unfinished, seconds)
    except OSError as error:
        where = error.filename or file
        raise DatabaseProblem(f"no backup was made: {where}: {error.strerror}.") from None
    except (sqlite3.Error, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise DatabaseProblem(f"no backup was made: {' '.join(said.split())}.") from None


@contextlib.contextmanager
def _private(file: Path) -> Iterator[Path]:
    """Yield an empty file with mode 0600 that replaces `file` at the end."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield unfinished
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def _copy_sqlite(url: URL, file: Path, seconds: float) -> None:
    with (
        contextlib.closing(sqlite3.connect(url.database, timeout=seconds)) as source,
        contextlib.closing(sqlite3.connect(file)) as target,
    ):
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log next to it


def _dump_postgresql(url: URL, file: Path, seconds: float) -> None:
    secret = (
        {"PGPASSWORD": url.password} if url.password else {}
    )  # the list of processes shows none
    parts = (url.username, None, url.host, url.port, url.database, url.query)
    name = URL.create("postgresql", *parts).render_as_string()
    subprocess.run(
        ["pg_dump", "--format=custom", "--no-owner", f"--file={file}", f"--dbname={name}"],
        env=os.environ | secret,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=True,
    )


def compact(engine: Engine) -> None:
    """Overwrite what was removed from a file of SQLite, and its log. PostgreSQL does so by itself."""
    if engine.dialect.name == "sqlite":
        with contextlib.closing(engine.raw_connection()) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def purge(
    session: Session,
    course: Course,
    scripts: bool,
    now: datetime.datetime,
    person: Person | None = None,
) -> tuple[int, int]:
    """Remove the personal data of a course, or of one person in it, for good. Scores stay, without names.

    It removes names, e-mail addresses, identities, tokens, pseudonyms, output of runs, and what staff and
    learners wrote. People who are in another course too keep what that one needs to know them by.

    Args:
        scripts: whether the scripts are removed, too.
        person: the one person. Default: all of the course.

    Returns:
        How many people lost their names, and how many keep them because of another course.
    """
    assignments = select(Assignment.id).where(Assignment.course_id == course.id)
    members = select(Member.person_id).where(Member.course_id == course.id)
    if person:
        members = members.where(Member.person_id == person.id)
    _purge_events(session, course, person)
    elsewhere = exists().where(Member.person_id == Person.id, Member.course_id != course.id)
    gone = select(Person.id).where(Person.id.in_(members), Person.removed_at.is_(None), ~elsewhere)
    people = list(session.scalars(gone))
    kept = session.scalar(select(func.count(Person.id)).where(Person.id.in_(members), elsewhere))
    session.execute(delete(Identity).where(Identity.person_id.in_(people)))
    empty = {"name": "", "email": "", "removed_at": now}
    session.execute(update(Person).where(Person.id.in_(people)).values(empty))
    session.execute(update(Token).where(Token.person_id.in_(people)).values(revoked=now))

    def theirs(table: type) -> ColumnElement[bool]:
        return and_(table.assignment_id.in_(assignments), table.person_id.in_(members))

    session.execute(delete(BoardEntry).where(theirs(BoardEntry)))
    for table in (Extension, Grade):
        session.execute(update(table).where(theirs(table)).values(by="", reason=""))
    if not person:
        rows = update(Regrade).where(Regrade.assignment_id.in_(assignments))
        session.execute(rows.values(by="", reason=""))
    submissions = select(Submission.id).where(theirs(Submission))
    written = {"text": "", "answer": "", "by": ""}
    session.execute(update(Appeal).where(Appeal.submission_id.in_(submissions)).values(written))
    for grading in session.scalars(select(Grading).where(Grading.submission_id.in_(submissions))):
        grading.log = grading.progress = ""
        if grading.document:
            sha256 = grading.document["submission"].get("sha256")
            about = {"submission": {"id": "removed", "sha256": sha256}, "output": ""}
            grading.document = {**grading.document, **about}
    if scripts:
        session.execute(update(Submission).where(Submission.id.in_(submissions)).values(script=b""))
    session.flush()
    return len(people), kept


def _purge_events(session: Session, course: Course, person: Person | None) -> None:
    """Empty the log of a course, or the lines in which one person is named."""
    lines = update(Event).where(Event.course_id == course.id)
    if person:
        known = select(Identity.subject).where(Identity.person_id == person.id)
        names = {person.name, person.email, *session.scalars(known)} - {""}
        texts = Event.who, Event.on, Event.detail
        lines = lines.where(or_(*(t.contains(n, autoescape=True) for t in texts for n in names)))
    session.execute(lines.values(who="", on="", detail=""))
