"""The interface of workers: claims that wait, leases that are lost, and results that are refused."""

import base64
import concurrent.futures
import copy
import time

import pytest
import service_site
from service_site import ON_BOTH, RESULTS, ago
from sqlalchemy import select

from hvdgrade.service import app
from hvdgrade.service.models import Grading, Worker


def wait_until(true) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_claim_names_everything_that_a_run_needs(site):
    id = site.submit(script=b"print('\xc3\xa4')").json()["id"]
    site.change(limit_s=100.0, require_sandbox="landlock", feedback="verdict")
    answer = site.claim()
    lease = answer.json()
    assert answer.status_code == 200 and lease.pop("token") and lease.pop("grading")
    assert base64.b64decode(lease.pop("script")) == b"print('\xc3\xa4')"
    assert lease == {
        "submission": id,
        "profile": "cpu",
        "ranks": 2,
        "limit_s": 100.0,
        "require_sandbox": "landlock",
        "hints": False,
        "rank": 0,
    }
    empty = site.claim()
    assert (empty.status_code, empty.content) == (204, b"")


@ON_BOTH
def test_a_claim_that_waits_gets_what_is_handed_in_meanwhile(engine):
    with (
        service_site.running(engine, claim_s=60.0) as site,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        waiting = pool.submit(site.claim)
        wait_until(lambda: site.app.state.server.readers)
        id = site.submit().json()["id"]
        assert waiting.result(60).json()["submission"] == id


def test_a_worker_that_does_not_fit_is_told_why(site):
    site.submit()
    site.change(require_sandbox="landlock")
    answer = site.claim(tier="rlimits")
    assert answer.status_code == 409
    assert "needs the isolation level landlock" in answer.json()["refused"]
    with site.transaction() as session:
        (worker,) = session.scalars(select(Worker)).all()
        assert (worker.name, worker.tier) == ("w", "rlimits") and "landlock" in worker.refused
    assert site.claim(tier="landlock").status_code == 200
    assert site.scalar(select(Worker.refused)) == ""


def test_only_a_worker_of_the_pool_claims(site):
    site.submit()
    assert site.client("ada").post("/api/claim", json={}).status_code == 401
    assert site.client().post("/api/claim", json={}).status_code == 401
    other = site.claim(pool="gpu")
    assert (other.status_code, "pool default" in other.json()["refused"]) == (409, True)
    assert "pool default" in site.browser("tom").get("/i/cifar/workers").text
    for body in (b"", b"[]", b"{", b"[" * 100_000):
        assert site.client("worker").post("/api/claim", content=body).status_code in (400, 413)
    for rules in ([1], {}, {"cpu": [1]}):
        refused = site.claim(rules=rules, slots=-3, gpus="many", name=None, version={})
        assert (refused.status_code, "cannot grade" in refused.json()["refused"]) == (409, True)
    assert site.claim(slots=-3, gpus="many", name=None, version={}).status_code == 200


def test_a_result_is_taken_once_and_repeating_it_is_no_error(site):
    id = site.submit().json()["id"]
    lease = site.claim().json()
    assert [site.result(lease).status_code for _ in range(2)] == [200, 200]
    assert site.about(lease, "beat").status_code == 409
    assert site.about(lease, "back").status_code == 409
    assert site.status(id)["score"] == 100


@ON_BOTH
def test_who_lost_the_lease_ends_its_run(site):
    site.submit()
    lost = site.claim().json()
    assert site.about(lost, "back").status_code == 200
    new = site.claim().json()
    assert new["grading"] == lost["grading"] and new["token"] != lost["token"]
    for what in ("beat", "back"):
        assert site.about(lost, what).status_code == 409
    answer = site.result(lost)
    assert answer.status_code == 409 and "end the run" in answer.json()["error"]
    assert site.about({"grading": 999, "token": "x"}, "beat").status_code == 409
    assert site.result(new).status_code == 200


def test_a_worker_that_ends_costs_no_try_and_one_that_cannot_grade_does(site):
    id = site.submit().json()["id"]
    for ends in (*4 * [True], *3 * [False]):
        assert site.gradings(id) == [("first", "queued")]
        assert site.about(site.claim().json(), "back", worker_ends=ends).status_code == 200
    assert site.gradings(id) == [("first", "fault")]


def changed(**changes) -> dict:
    return copy.deepcopy(RESULTS["pass"]) | changes


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        {"status": "graded"},
        changed(score="100"),
        changed(verdict=None),
        changed(submission={"id": "x", "sha256": "0" * 64}),
        changed(checks=[{"id": "x", "state": "great"}]),
    ],
)
def test_what_is_no_result_of_this_script_is_refused(site, document):
    id = site.submit().json()["id"]
    lease = site.claim().json()
    answer = site.about(lease, "result", document=document)
    assert (answer.status_code, list(answer.json())) == (422, ["error"])
    assert site.status(id)["state"] == "leased"


@ON_BOTH
def test_sizes_of_a_result(site):
    site.submit()
    lease = site.claim().json()
    long = site.about(lease, "result", document=changed(output="x" * 300_000))
    assert (long.status_code, "256 kB" in long.json()["error"]) == (413, True)
    assert site.about(lease, "result", document={}, log="x" * 900_000).status_code == 413
    assert site.about(lease, "beat", progress="x" * 50_000).status_code == 413
    assert site.about(lease, "beat", progress="x" * 20_000 + "end\0\ud800").status_code == 200
    progress = site.scalar(select(Grading.progress))
    assert len(progress) <= 4096 and "end" in progress and "\0" not in progress


@ON_BOTH
def test_a_lease_that_ran_out_is_taken_back_without_any_request(engine, monkeypatch):
    monkeypatch.setattr(app, "EXPIRE_S", 0.1)
    with service_site.running(engine) as site:
        id = site.submit().json()["id"]
        assert site.claim().status_code == 200
        with site.transaction() as session:
            session.scalar(select(Grading)).lease_until = ago(seconds=1)
        wait_until(lambda: site.gradings(id) == [("first", "queued")])


def test_a_server_that_was_away_waits_for_the_workers_before_it_takes_leases_back(engine):
    with service_site.running(engine) as site:
        site.submit()
        lease = site.claim().json()
    with site.transaction() as session:
        session.scalar(select(Grading)).lease_until = before = ago(seconds=300)
    with service_site.running(engine) as again:
        wait_until(lambda: again.scalar(select(Grading.lease_until)) != before)
        again.tokens = site.tokens
        assert again.result(lease).status_code == 200
