"""`hvdgrade serve` on PostgreSQL: it needs current tables, and outlives a stop of the database."""

import pytest
from serve_process import address, started
from service_site import Site

from hvdgrade import cli
from hvdgrade.service import database

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("kind", ["postgresql"])]


def test_a_stop_of_the_database_loses_nothing(empty_url, postgres, tmp_path):
    arguments = (tmp_path, "--no-worker", "--database", empty_url)
    with started(*arguments) as process:
        assert process.wait(60) == 2
    refused = (tmp_path / "errors").read_text()
    assert "run `hvdgrade db upgrade`" in refused and refused.count("\n") == 1
    assert cli.main(["db", "upgrade", "--database", empty_url]) == 0
    engine = database.connect(empty_url)
    with started(*arguments) as process:
        site = Site(engine, address(process), None)
        ada, script = site.submit("ada").json()["id"], b"print('bob')"
        lease = site.claim().json()
        assert lease["submission"] == ada
        postgres.stop()  # at once, as a power failure does
        for away in (
            site.submit("bob", script, "k"),
            site.about(lease, "beat"),
            site.result(lease),
        ):
            assert (away.status_code, int(away.headers["Retry-After"]) > 0) == (503, True)
        assert site.client().get("/healthz").status_code == 503
        postgres.start()
        bob = [site.submit("bob", script, "k").json() for _ in range(2)]
        assert (bob[0]["number"], bob[0]["state"]) == (1, "queued") and bob[0] == bob[1]
        assert site.about(lease, "beat").status_code == 200
        assert [site.result(lease).status_code for _ in range(2)] == [200, 200]
        status = site.status(ada)
        assert (status["state"], status["score"], status["counts"]) == ("done", 100, True)
    engine.dispose()
    assert "Traceback" not in (tmp_path / "errors").read_text()
