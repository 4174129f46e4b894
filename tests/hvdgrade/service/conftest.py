"""A database of the service, once of SQLite and once of PostgreSQL, and a class in it."""

import datetime
import itertools
import shutil
import tempfile
from pathlib import Path

import postgres_server
import pytest
from service_class import NOW, ServiceClass

from hvdgrade.service import database

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres():
    """Return a running PostgreSQL server with a migrated database `migrated`, or skip the test."""
    if reason := postgres_server.why_not():
        pytest.skip(reason)
    place = Path(
        tempfile.mkdtemp(prefix="hvdlab-pg-")
    )  # a socket's path has at most 107 characters
    try:
        with postgres_server.running(place) as server:
            engine = database.connect(server.database("migrated"))
            database.upgrade(engine)
            engine.dispose()
            yield server
    finally:
        shutil.rmtree(place)


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory) -> Path:
    """Return a migrated database of SQLite to copy."""
    file = tmp_path_factory.mktemp("sqlite") / "migrated.db"
    engine = database.connect(f"sqlite:///{file}")
    database.upgrade(engine)
    with engine.connect() as connection:
        connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()
    return file


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request) -> str:
    """Return each kind of database."""
    return request.param


@pytest.fixture
def empty_url(kind, request, tmp_path) -> str:
    """Return the address of a database without tables."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/empty.db"
    return request.getfixturevalue("postgres").database(f"empty{next(NUMBERS)}")


@pytest.fixture
def url(kind, request, tmp_path) -> str:
    """Return the address of a migrated database."""
    if kind == "postgresql":
        return request.getfixturevalue("postgres").database(f"test{next(NUMBERS)}", "migrated")
    shutil.copyfile(request.getfixturevalue("sqlite"), tmp_path / "service.db")
    return f"sqlite:///{tmp_path}/service.db"


@pytest.fixture
def engine(url):
    """Return the engine of a migrated database."""
    engine = database.connect(url)
    yield engine
    engine.dispose()


@pytest.fixture
def clock() -> "Clock":
    """Return a clock that moves only when a test moves it."""
    return Clock()


class Clock:
    """The moment that a test hands to the functions of the service."""

    def __init__(self) -> None:
        self.now = NOW

    def wait(self, seconds: float) -> datetime.datetime:
        """Let time pass, and return the moment after it."""
        self.now += datetime.timedelta(seconds=seconds)
        return self.now


@pytest.fixture
def session(engine):
    """Return a session in a transaction, which is committed at the end."""
    with database.transaction(engine) as session:
        yield session


@pytest.fixture
def course(session) -> ServiceClass:
    """Return a course with one open assignment, three learners and a worker."""
    return ServiceClass(session)
