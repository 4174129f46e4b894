"""The database of the service: SQLite or PostgreSQL.

    engine = connect("sqlite:////srv/hvdgrade/service.db")
    must_be_current(engine)
    with transaction(engine) as session:
        ...

Only the server opens it. Its errors show no parameters, because these hold scripts and names, and `repr` of
its address shows no password. A change of models.py needs a revision in migrations/versions, which
`python -m hvdgrade.service.database "Add the column ..."` writes for you to check.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import alembic.command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session

from hvdgrade import HvdgradeError

EXAMPLES = "sqlite:////srv/hvdgrade/service.db or postgresql+psycopg://user@host/hvdgrade"
MIGRATIONS = Path(__file__).with_name("migrations")
LOCK_SECONDS = 30  # for which a transaction of SQLite waits for another one


class DatabaseProblem(HvdgradeError):
    """The database cannot be used. The message says why in one sentence."""


def connect(url: str) -> Engine:
    """Return the engine of a database. PostgreSQL itself is not asked before the first transaction.

    Raises:
        DatabaseProblem: it is neither SQLite nor PostgreSQL, or the file cannot be made.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseProblem(f"{url!r} is no address of a database: write {EXAMPLES}.") from None
    if parsed.drivername in ("sqlite", "sqlite+pysqlite") and parsed.database:
        _make_private(Path(parsed.database))
        return _sqlite(parsed)
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        try:
            return create_engine(
                parsed.set(drivername="postgresql+psycopg"),
                pool_pre_ping=True,
                hide_parameters=True,
            )
        except ModuleNotFoundError:
            raise DatabaseProblem(
                "PostgreSQL needs the package psycopg: pip install 'psycopg[binary]'."
            ) from None
    raise DatabaseProblem(
        f"{parsed!r} is neither a file of SQLite nor PostgreSQL: write {EXAMPLES}."
    )


def _make_private(file: Path) -> None:
    """Make the file of a database if there is none, so that only its owner can read it."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise DatabaseProblem(f"the database {file} cannot be opened: {error.strerror}.") from None


def _sqlite(url: URL, foreign_keys: bool = True) -> Engine:
    """Return an engine that begins its transactions itself, by the recipe of SQLAlchemy for pysqlite."""
    engine = create_engine(url, connect_args={"timeout": LOCK_SECONDS}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def prepare(connection, _record) -> None:
        connection.isolation_level = None  # the module sqlite3 must not begin one
        connection.execute(
            "PRAGMA journal_mode = WAL"
        )  # readers and one writer do not wait for each other
        connection.execute(f"PRAGMA foreign_keys = {foreign_keys:d}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get("reads")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


@contextmanager
def transaction(engine: Engine) -> Iterator[Session]:
    """Begin a transaction that may write, yield its session, and commit; roll back after an exception."""
    with Session(engine) as session, session.begin():
        session.connection()  # takes the lock of SQLite before anything is read
        yield session


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """Yield a session that only reads, and so waits for no writer."""
    with Session(engine.execution_options(reads=True)) as session:
        yield session
        session.rollback()


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Make the tables, or change those of an earlier version; all of it or nothing.

    Args:
        revision: the last revision that is applied. Default: the newest.

    Raises:
        DatabaseProblem: the database cannot be reached, or comes from a newer version.
    """
    # SQLite changes a table by copying it, during which references to it point nowhere.
    own = _sqlite(engine.url, foreign_keys=False) if engine.dialect.name == "sqlite" else engine
    with _sentences(engine), own.begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, revision)
        if own is not engine and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
            raise DatabaseProblem(
                "the upgrade would break references between tables: nothing was changed."
            )
    if own is not engine:
        own.dispose()


def must_be_current(engine: Engine) -> None:
    """Check that the tables are those of this version.

    Raises:
        DatabaseProblem: they are not, or the database cannot be reached.
    """
    head = ScriptDirectory.from_config(_config()).get_current_head()
    with _sentences(engine), engine.connect() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    if found != head:
        raise DatabaseProblem(
            f"{engine.url!r} has the tables of revision {found or 'none'}, and this version needs "
            f"{head}: run `hvdgrade db upgrade` with this --database."
        )


@contextmanager
def _sentences(engine: Engine) -> Iterator[None]:
    """Turn the errors of the libraries into a sentence."""
    try:
        yield
    except DBAPIError as error:
        said = " ".join(str(error.orig).split())
        raise DatabaseProblem(f"{engine.url!r} cannot be used: {said}") from None
    except CommandError as error:
        raise DatabaseProblem(
            f"{engine.url!r} comes from a newer version of hvdgrade: install that one ({error})."
        ) from None


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        engine = connect(f"sqlite:///{place}/new.db")
        upgrade(engine)
        with engine.begin() as connection:
            config = _config()
            config.attributes["connection"] = connection
            number = len(list(MIGRATIONS.glob("versions/*.py"))) + 1
            alembic.command.revision(config, sys.argv[1], autogenerate=True, rev_id=f"{number:04}")
