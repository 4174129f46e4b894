"""A running server, on SQLite unless a test asks for both kinds of database (`service_site.ON_BOTH`)."""

import pytest
import service_site


@pytest.fixture
def kind() -> str:
    """Return the kind of the database, which `ON_BOTH` replaces."""
    return "sqlite"


@pytest.fixture
def site(engine):
    """Return a running server with a class."""
    with service_site.running(engine) as site:
        yield site
