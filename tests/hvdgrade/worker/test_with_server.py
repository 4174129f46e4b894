"""A worker and the real server: what is handed in is graded, and can be followed."""

from types import SimpleNamespace

import pytest
import service_site
from school import QUICK
from sqlalchemy import select

from hvdgrade.service import database
from hvdgrade.service.models import Worker

pytestmark = [pytest.mark.mpi, pytest.mark.slow]


@pytest.fixture
def site(tmp_path):
    """A running server with a class, whose assignment is graded quickly."""
    engine = database.connect(f"sqlite:///{tmp_path}/service.db")
    database.upgrade(engine)
    with service_site.running(engine) as site:
        site.change(profile="dli", ranks=1)
        yield site


def test_what_is_handed_in_is_graded(worker, site):
    worker.server = SimpleNamespace(url=site.url, token=site.tokens["worker"])
    first = site.submit("ada", QUICK.encode()).json()["id"]
    second = site.submit("bob", worker.sleeper(300).encode()).json()["id"]
    worker.start("--workers", 1, before="from hvdgrade.worker import loop; loop.BEAT_SECONDS = 0.5")
    worker.wait_for(lambda: site.status(first)["state"] == "done")
    status = site.status(first)
    assert (status["verdict"], status["exit_code"], status["score"]) == ("fail", 1, 0)
    worker.wait_for(lambda: "running the submission" in site.status(second, "bob")["progress"])
    assert site.status(second, "bob")["state"] == "leased"
    assert worker.end() == 0
    assert site.status(second, "bob")["state"] == "queued"
    assert worker.files() == [] and worker.processes() == []
    with site.transaction() as session:
        (row,) = session.scalars(select(Worker)).all()
        assert (row.slots, row.refused) == (1, "") and row.rules["dli"] and row.hardware
