"""A running server on a copy of a migrated SQLite file."""

import shutil

import pytest
import service_site

from hvdgrade.service import database


@pytest.fixture(scope="session")
def migrated(tmp_path_factory):
    """Return a SQLite file with the tables."""
    file = tmp_path_factory.mktemp("migrated") / "service.db"
    engine = database.connect(f"sqlite:///{file}")
    database.upgrade(engine)
    with engine.connect() as connection:
        connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()
    return file


@pytest.fixture
def engine(migrated, tmp_path):
    """Return the engine of a new database."""
    shutil.copyfile(migrated, tmp_path / "service.db")
    return database.connect(f"sqlite:///{tmp_path}/service.db")


@pytest.fixture
def site(engine):
    """Return a running server with a class."""
    with service_site.running(engine) as site:
        yield site
