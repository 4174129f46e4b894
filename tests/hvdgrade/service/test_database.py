"""Engines, migrations and transactions, on SQLite and PostgreSQL."""

import datetime
import stat
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from service_class import NOW, ServiceClass
from sqlalchemy import MetaData, insert, select, text
from sqlalchemy.orm import Session

from hvdgrade.service import database, queue
from hvdgrade.service.models import Base, Course, Grade, Grading, LineItem, Submission, Worker


def test_the_migrated_tables_are_those_of_the_models(engine):
    database.must_be_current(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_a_database_without_tables_is_refused_in_one_sentence(empty_url):
    engine = database.connect(empty_url)
    with pytest.raises(
        database.DatabaseProblem, match="revision none, and .*`hvdgrade db upgrade`"
    ):
        database.must_be_current(engine)
    database.upgrade(engine)
    database.must_be_current(engine)
    database.upgrade(engine)  # again changes nothing
    database.must_be_current(engine)
    engine.dispose()


def test_a_database_of_a_newer_version_is_refused_in_one_sentence(engine):
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(database.DatabaseProblem, match="newer version of hvdgrade"):
        database.upgrade(engine)


ROWS = {
    "course": {"id": 1, "slug": "dl"},
    "person": {"id": 1, "name": "Ada"},
    "token": {"id": 1, "kind": "worker", "pool": "default"},
    "assignment": {
        "id": 1,
        "course_id": 1,
        "slug": "cifar",
        "profile": "cpu",
        "ranks": 2,
        "counts": "best",
    },
    "member": {"course_id": 1, "person_id": 1, "role": "learner"},
    "worker": {"id": 1, "token_id": 1, "name": "w", "pool": "default", "tier": "user"},
    "submission": {"id": "s1", "assignment_id": 1, "person_id": 1, "number": 1, "script": b"pass"},
    "grading": {"id": 1, "submission_id": "s1", "pool": "default", "state": "queued"},
    "grade": {"assignment_id": 1, "person_id": 1, "grading_id": 1},
    "line_item": {"assignment_id": 1, "issuer": "https://lms", "url": "u", "deployment": "d"},
}
OLD = sorted(file.name[:4] for file in database.MIGRATIONS.glob("versions/*.py"))[:-1]
EMPTY = {str: "", bytes: b"", int: 0, float: 0.0, bool: False, datetime.datetime: NOW, object: {}}


@pytest.mark.parametrize("revision", OLD)
def test_an_upgrade_keeps_the_queue_of_an_older_revision(empty_url, revision):
    engine = database.connect(empty_url)
    database.upgrade(engine, revision)
    old = MetaData()
    old.reflect(engine)
    with engine.begin() as connection:
        for name, row in ROWS.items():
            needed = [c for c in old.tables[name].columns if not c.nullable and c.name not in row]
            connection.execute(
                insert(old.tables[name]).values(
                    row | {c.name: EMPTY[c.type.python_type] for c in needed}
                )
            )
    database.upgrade(engine)
    database.must_be_current(engine)
    with database.transaction(engine) as session:
        worker = session.get(Worker, 1)
        worker.rules = {"cpu": "a" * 64}
        lease = queue.claim(session, worker, NOW)
        assert (lease.submission, lease.script) == ("s1", b"pass")
        assert session.get(Grade, (1, 1)).grading_id == 1
        assert session.get(LineItem, 1).url == "u"
    with (
        engine.connect() as connection
    ):  # the index of open gradings is still one of some rows only
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, Base.metadata) == []
        if engine.dialect.name == "sqlite":
            query = "SELECT sql FROM sqlite_master WHERE name = 'one_open_grading'"
            assert "WHERE state IN" in connection.scalar(text(query))
    engine.dispose()


def test_an_upgrade_that_fails_changes_nothing(empty_url, monkeypatch):
    engine = database.connect(empty_url)
    database.upgrade(engine, "0001")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE regrade (id INTEGER)"))  # stands in the way of 0002
    with pytest.raises(database.DatabaseProblem, match="regrade"):
        database.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE regrade"))
    database.upgrade(engine)
    database.must_be_current(engine)
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "is no address of a database"),
        ("mysql://host/name", "neither a file of SQLite nor PostgreSQL"),
        ("sqlite://", "neither a file of SQLite nor PostgreSQL"),
        ("sqlite:////no/such/folder/a.db", "cannot be opened: No such file or directory"),
    ],
)
def test_a_wrong_address_gives_one_sentence(url, sentence):
    with pytest.raises(database.DatabaseProblem, match=sentence):
        database.connect(url)


def test_a_server_that_does_not_answer_gives_one_sentence_without_the_password(tmp_path):
    engine = database.connect(f"postgresql://me:secret@/x?host={tmp_path}")
    with pytest.raises(database.DatabaseProblem) as error:
        database.must_be_current(engine)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_only_the_owner_can_read_a_file_of_sqlite(tmp_path):
    engine = database.connect(f"sqlite:///{tmp_path}/a.db")
    database.upgrade(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert len(list(Path(tmp_path).iterdir())) == 3
        for file in tmp_path.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    engine.dispose()


def test_a_transaction_commits_or_leaves_nothing(engine):
    with pytest.raises(ZeroDivisionError), database.transaction(engine) as session:
        session.add(Course(slug="lost"))
        session.flush()
        raise ZeroDivisionError
    with database.transaction(engine) as session:
        session.add(Course(slug="kept"))
    with database.reading(engine) as session:
        assert session.scalars(select(Course.slug)).all() == ["kept"]


def test_readers_of_sqlite_do_not_wait_for_a_writer(tmp_path, sqlite):
    engine = database.connect(f"sqlite:///{sqlite}")
    with database.transaction(engine) as writer:
        writer.add(Course(slug="new"))
        writer.flush()
        with database.reading(engine) as session:
            assert session.scalars(select(Course.slug)).all() == []
        writer.rollback()
    engine.dispose()


def test_moments_come_back_in_utc(engine):
    berlin = datetime.timezone(datetime.timedelta(hours=1))
    with database.transaction(engine) as session:
        course = ServiceClass(session)
        course.assignment.due = datetime.datetime(2026, 12, 1, 23, 59, tzinfo=berlin)
        course.submit(0)
    with Session(engine) as session:
        submission = session.scalars(select(Submission)).one()
        assert submission.assignment.due == datetime.datetime(
            2026, 12, 1, 22, 59, tzinfo=datetime.UTC
        )
        assert session.scalars(select(Grading.queued)).one() == NOW
