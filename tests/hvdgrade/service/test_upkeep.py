"""Backups that are restored, and the end of a course, on SQLite and PostgreSQL."""

import os
import re
import stat
import subprocess
from pathlib import Path

import postgres_server
import pytest
from service_class import NOW, ServiceClass
from sqlalchemy import make_url, select

from hvdgrade.service import database, grades, queue, upkeep
from hvdgrade.service.models import (
    Base,
    Course,
    Event,
    Grade,
    Grading,
    Identity,
    Member,
    Person,
    Submission,
    Token,
    Worker,
)


@pytest.fixture(autouse=True)
def programs_of_postgresql(monkeypatch):
    """Let the tests find pg_dump where PATH does not name the folder of the server."""
    place = postgres_server.folder_of_programs()
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")


def restored(kind: str, file, request) -> str:
    """Restore a backup as the documentation says, and return the address."""
    if kind == "sqlite":
        return f"sqlite:///{file}"
    server = request.getfixturevalue("postgres")
    url = server.database(f"restored{os.urandom(4).hex()}")
    name = make_url(url).database
    subprocess.run(
        ["pg_restore", "--dbname", name, str(file)],
        env=os.environ | {"PGHOST": str(server.folder), "PGUSER": "hvdgrade"},
        check=True, timeout=60, capture_output=True,
    )  # fmt: skip
    return url


def test_a_restored_backup_grades_what_waited_and_what_ran(engine, kind, clock, tmp_path, request):
    with database.transaction(engine) as session:
        course = ServiceClass(session)
        course.grade(0, 80.0)
        names = [course.submit(number).submission.id for number in (1, 2)]
        lost = queue.claim(session, course.worker, clock.now)
    file = tmp_path / "backup"
    with database.transaction(engine) as session:  # a backup while somebody writes
        session.add(Course(slug="uncommitted"))
        session.flush()
        upkeep.backup(engine, file)
        session.rollback()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(tmp_path.glob(".backup*"))
    copy = database.connect(restored(kind, file, request))
    database.must_be_current(copy)
    with database.transaction(copy) as session:
        assert queue.expire(session, clock.wait(61)) == 1
        course.session, worker = session, session.get(Worker, 1)
        leases = [queue.claim(session, worker, clock.now) for _ in range(3)]
        assert [lease and lease.submission for lease in leases] == [*names, None]
        assert leases[0].grading == lost.grading
        assert all(course.finish(lease, 60.0, clock.now) for lease in leases[:2])
        assert session.scalars(select(Grade.score).order_by(Grade.person_id)).all() == [
            80.0,
            60.0,
            60.0,
        ]
    copy.dispose()


def test_a_backup_that_fails_is_one_sentence_and_leaves_the_old_file(
    engine, kind, tmp_path, monkeypatch
):
    (tmp_path / "old").write_text("old")
    with pytest.raises(database.DatabaseProblem, match="no backup was made: .*No such file"):
        upkeep.backup(engine, tmp_path / "nowhere" / "backup")
    if kind == "postgresql":
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(database.DatabaseProblem, match="pg_dump: No such file"):
            upkeep.backup(engine, tmp_path / "old")
        (tmp_path / "pg_dump").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
        (tmp_path / "pg_dump").chmod(0o755)
        with pytest.raises(database.DatabaseProblem, match="timed out after"):
            upkeep.backup(engine, tmp_path / "old", seconds=0.2)
        (tmp_path / "pg_dump").write_text("#!/bin/sh\necho no such database >&2\nexit 1\n")
        with pytest.raises(database.DatabaseProblem, match="made: no such database.$"):
            upkeep.backup(engine, tmp_path / "old")
    assert (tmp_path / "old").read_text() == "old"
    assert not list(tmp_path.glob(".old*"))


@pytest.mark.parametrize("scripts", [False, True])
def test_a_purge_leaves_scores_without_names(engine, clock, scripts):
    with database.transaction(engine) as session:
        course = ServiceClass(session)
        secret = "Person 0 p0@example.edu"
        receipt = course.submit(0, script=secret.encode())
        lease = queue.claim(session, course.worker, clock.now)
        queue.beat(session, lease.grading, lease.token, secret, clock.now)
        about = {
            "submission": {"id": secret, "sha256": receipt.submission.sha256},
            "output": secret,
        }
        assert course.finish(lease, 70.0, **about)
        course.gradings()[0].log = secret
        asked = grades.appeal(session, receipt.submission, secret, clock.now)
        grades.answer(session, asked, "kept", secret, "staff", clock.now)
        grades.override(
            session, course.assignment, course.people[0], 75.0, "staff", secret, clock.now
        )
        session.add(Token(sha256="t", kind="person", person_id=course.people[0].id, created=NOW))
        session.add(other := Course(slug="other"))
        session.flush()
        session.add(Member(course_id=other.id, person_id=course.people[2].id))
    with database.transaction(engine) as session:
        one = session.scalars(select(Course).filter_by(slug="dl")).one()
        assert upkeep.purge(session, one, scripts, clock.now) == (2, 1)
        assert upkeep.purge(session, one, scripts, clock.now) == (0, 1)
    with database.reading(engine) as session:
        assert [p.name for p in session.scalars(select(Person).order_by(Person.id))] == [
            "",
            "",
            "Person 2",
        ]
        assert session.scalars(select(Identity.subject)).all() == ["p2@example.edu"]
        assert session.scalars(select(Grade.override)).all() == [75.0]
        assert session.scalars(select(Grading.score)).all() == [70.0]
        assert session.scalars(select(Token.revoked).where(Token.kind == "person")).all() == [
            clock.now
        ]
        kept = session.scalars(select(Submission.script)).all()
        assert kept == ([b""] if scripts else [secret.encode()])
        assert session.scalars(select(Event.what)).all() == ["appeal kept", "override"]
    assert everything(engine).count("p0@example.edu") == (0 if scripts else 1)
    upkeep.compact(engine)
    if engine.dialect.name == "sqlite" and scripts:
        files = list(Path(engine.url.database).parent.iterdir())
        assert files and not any(b"p0@example.edu" in file.read_bytes() for file in files)


def everything(engine) -> str:
    """Return all cells of all tables as text."""
    with engine.connect() as connection:
        return " ".join(
            str(row)
            for table in Base.metadata.sorted_tables
            for row in connection.execute(select(table))
        )


def test_one_person_is_purged_and_the_others_stay(engine, clock):
    with database.transaction(engine) as session:
        course = ServiceClass(session)
        for number in (0, 1):
            receipt = course.submit(number, script=f"p{number}@example.edu".encode())
            assert course.finish(queue.claim(session, course.worker, clock.now), 70.0)
            person = course.people[number]
            grades.override(
                session, course.assignment, person, 75.0, "staff", f"ask {person.name}", clock.now
            )
            asked = grades.appeal(session, receipt.submission, f"by {person.name}", clock.now)
            grades.answer(session, asked, "kept", "no", "staff", clock.now)
        one = session.scalars(select(Course).filter_by(slug="dl")).one()
        assert upkeep.purge(session, one, True, clock.now, course.people[0]) == (1, 0)
    said = everything(engine)
    assert "Person 0" not in said and "p0@example.edu" not in said
    assert said.count("p1@example.edu") == 3  # of the person, its identity, and the script
    assert {"ask Person 1", "by Person 1"} <= set(re.findall(r"(?:ask|by) Person \d", said))
    with database.reading(engine) as session:
        assert session.scalars(select(Grade.override)).all() == [75.0, 75.0]
