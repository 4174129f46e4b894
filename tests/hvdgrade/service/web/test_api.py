"""The JSON interface of front doors: handing in, each refusal, the status, and the formats of platforms."""

import datetime
import logging
import socket
import time
from urllib.parse import urlsplit

import pytest
import service_site
import sqlalchemy
from service_site import ON_BOTH, RESULTS, ago
from sqlalchemy import event, select

from hvdgrade.export import gradescope
from hvdgrade.service.models import Course, Extension, Identity, Submission

HEAD = "POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: k\r\n"


def refused(answer, status: int, words: str) -> None:
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert words in answer.json()["error"]


@ON_BOTH
def test_a_submission_is_new_once_and_the_same_when_the_request_is_repeated(site):
    first = site.submit(key="k", script=b"print(1)")
    assert first.status_code == 201
    status = first.json()
    assert (status["state"], status["place"], status["number"]) == ("queued", 1, 1)
    assert (status["estimate_s"], status["workers"], status["exit_code"]) == (None, 0, None)
    again = site.submit(key="k", script=b"print(1)")
    assert (again.status_code, again.json()) == (200, status)
    refused(site.submit(key="k", script=b"print(2)"), 409, "belongs to another")
    refused(site.submit("bob", key="k", script=b"print(1)"), 409, "belongs to another")


def test_each_refusal_is_one_sentence(site):
    refused(site.submit(key=""), 400, "Idempotency-Key")
    refused(site.submit(key="k" * 101), 400, "1 to 100")
    refused(site.submit(script=b" \n"), 400, "no script")
    refused(site.submit(None), 401, "token")
    refused(site.submit("worker"), 401, "token")
    site.tokens["nobody"] = "unknown"
    refused(site.submit("nobody"), 401, "unknown")
    refused(site.submit("oscar"), 403, "not a member")
    refused(site.submit(slug="nothing"), 404, "no such assignment")
    refused(site.submit("gradescope"), 400, "Hvdgrade-Learner")
    refused(site.submit("away", **{"Hvdgrade-Learner": "x@y"}), 403, "not for this assignment")
    refused(site.submit(script=b"x" * 64_001), 413, "64 kB")
    refused(site.client("ada").get("/api/submissions/none"), 404, "no such page")
    refused(site.client("ada").get("/api/nothing"), 404, "no such page")
    refused(site.client("ada").put("/api/claim"), 405, "does not take")


@ON_BOTH
def test_deadline_attempts_and_cool_down(site):
    site.change(cooldown_s=1000.0)
    assert site.submit().status_code == 201
    cool = site.submit()
    refused(cool, 429, "Wait")
    assert 900 < int(cool.headers["Retry-After"]) <= 1000
    site.change(cooldown_s=0.0, attempts=1)
    assert site.result(site.claim().json()).status_code == 200
    refused(site.submit(), 429, "all 1 attempts")
    site.change(attempts=None, closes=ago(hours=1))
    refused(site.submit("bob"), 403, "closed")
    with site.transaction() as session:
        later = ago(hours=-1)
        session.add(Extension(assignment_id=1, person_id=site.ids["bob"], closes=later))
    assert site.submit("bob").status_code == 201


@pytest.mark.parametrize("chunked", [True, False])
def test_a_body_is_refused_while_it_streams(site, chunked):
    """A client that never ends its body gets 413, because the server stops reading."""
    host = urlsplit(site.url).netloc
    head = HEAD.format(path="/api/a/cifar/submissions", host=host, token=site.tokens["ada"])
    head += "Transfer-Encoding: chunked\r\n\r\n" if chunked else "Content-Length: 90000000\r\n\r\n"
    with socket.create_connection(host.split(":"), timeout=60) as connection:
        connection.sendall(head.encode())
        piece = b"x" * 1000
        chunk = b"3e8\r\n" + piece + b"\r\n" if chunked else piece
        for _ in range(65):
            connection.sendall(chunk)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert site.scalar(select(Submission)) is None


@ON_BOTH
def test_a_door_hands_in_for_the_learners_of_its_platform(site):
    first = site.submit("gradescope", **{"Hvdgrade-Learner": "New@Example.edu"})
    second = site.submit("gradescope", **{"Hvdgrade-Learner": "new@example.EDU"})
    assert (first.status_code, second.status_code) == (201, 201)
    assert (first.json()["number"], second.json()["number"]) == (1, 2)
    with site.transaction() as session:
        (identity,) = session.scalars(select(Identity)).all()
        assert (identity.issuer, identity.subject) == ("mail", "new@example.edu")
    id = second.json()["id"]
    assert site.client("gradescope").get(f"/api/submissions/{id}").status_code == 200
    for other in ("prairielearn", "away", "ada", "oscar"):
        refused(site.client(other).get(f"/api/submissions/{id}"), 404, "not yours")
    assert site.client("ines").get(f"/api/submissions/{id}").status_code == 200
    named = {"Hvdgrade-Learner": "UUID-7", "Hvdgrade-Learner-Name": "Grace"}
    assert site.submit("prairielearn", **named).status_code == 201
    with site.transaction() as session:
        assert session.get(Identity, ("door:prairielearn", "uuid-7")).person.name == "Grace"


@ON_BOTH
def test_the_status_follows_a_submission(site):
    old, new = site.submit().json()["id"], site.submit().json()["id"]
    assert site.status(old)["state"] == "replaced"
    assert site.status(old)["exit_code"] == 2
    lease = site.claim().json()
    assert lease["submission"] == new
    assert site.about(lease, "beat", progress="epoch 1\0").json() == {"lease_s": 60}
    running = site.status(new)
    assert (running["state"], running["progress"][:7], running["workers"]) == (
        "leased",
        "epoch 1",
        1,
    )
    assert site.client("ada").get(f"/api/submissions/{new}?format=gradescope").status_code == 202
    waits = site.submit("bob").json()
    assert (waits["place"], waits["estimate_s"]) == (1, 240)  # two gradings, 120 s each by default
    assert site.result(lease).status_code == 200
    done = site.status(new)
    assert (done["state"], done["verdict"], done["score"], done["max_score"]) == (
        "done", "pass", 100, 100,
    )  # fmt: skip
    assert (done["exit_code"], done["counts"]) == (0, True)


@pytest.mark.parametrize(("name", "code"), [("pass", 0), ("fail", 1), ("not_gradable", 2)])
def test_exit_codes_are_those_of_hvdgrade_run(site, name, code):
    assert site.status(site.graded(name=name))["exit_code"] == code


@ON_BOTH
def test_a_grader_fault_is_never_a_zero(site):
    id = site.submit().json()["id"]
    for _ in range(3):
        assert site.result(site.claim().json(), "grader_fault").status_code == 200
    status = site.status(id)
    assert (status["state"], status["exit_code"], status["score"]) == ("fault", 3, None)
    refused(
        site.client("ada").get(f"/api/submissions/{id}?format=gradescope"), 409, "grader failed"
    )


@pytest.mark.parametrize("hide", [{"released": False}, {"feedback": "none"}])
def test_hidden_results_are_hidden_from_all_but_staff(site, hide):
    site.change(**hide)
    id = site.graded(name="fail")
    status = site.status(id)
    assert (status["verdict"], status["score"], status["exit_code"]) == (None, None, 0)
    assert "55" not in status["message"] and "not reached" not in status["message"]
    assert not status["counts"]  # which of two attempts counts would say which is better
    assert site.client("ada").get(f"/api/submissions/{id}?format=gradescope").status_code == 409
    assert site.browser("ada").get(f"/s/{id}/report").status_code == 404
    assert site.status(id, "tom")["score"] == 55


def test_the_feedback_verdict_shows_points_and_no_check(site):
    site.change(feedback="verdict")
    id = site.graded(name="fail")
    assert site.status(id)["message"] == "Not passed yet, 55 of 100 points."
    payload = site.client("ada").get(f"/api/submissions/{id}?format=gradescope").json()
    assert (payload["score"], payload["tests"]) == (55.0, [])
    assert site.browser("ada").get(f"/s/{id}/report").status_code == 404
    assert site.browser("tom").get(f"/s/{id}/report").status_code == 200


def test_a_platform_gets_its_own_format(site):
    id = site.graded(name="fail")
    answer = site.client("ada").get(f"/api/submissions/{id}?format=gradescope")
    assert answer.json() == gradescope.payload(RESULTS["fail"])
    refused(site.client("ada").get(f"/api/submissions/{id}?format=exe"), 400, "must be one of")


def test_a_full_disk_stores_nothing_and_logs_no_script(site, caplog):
    caplog.set_level(logging.INFO)

    @event.listens_for(site.engine, "connect")
    def no_more_pages(connection, _record):
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

    site.engine.dispose()
    script = b"MY_SECRET_LINE = 1\n" * 3000
    refused(site.submit(script=script), 507, "disk of the server is full")
    assert site.scalar(select(Submission)) is None
    assert "507" in caplog.text
    assert "MY_SECRET" not in caplog.text and site.tokens["ada"] not in caplog.text


def test_an_error_of_the_database_names_no_value(site):
    """Tracebacks contain such errors, and a value may be a script."""
    with pytest.raises(sqlalchemy.exc.IntegrityError) as failed, site.transaction() as session:
        session.add(Course(slug="dl", title="MY_SECRET_LINE"))
    assert "INSERT INTO course" in str(failed.value) and "MY_SECRET" not in str(failed.value)


def test_a_database_that_is_away_is_503_with_a_time_to_wait(site, tmp_path):
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/missing/service.db")
    site.app.state.server.engine = engine
    answer = site.client("ada").get("/api/submissions/x")
    refused(answer, 503, "database cannot be reached")
    assert int(answer.headers["Retry-After"]) > 0
    assert site.client().get("/healthz").status_code == 503


def test_health_and_metrics(site):
    site.submit()
    assert site.client().get("/healthz").json() == {"ok": True}
    lines = site.client().get("/metrics").text.splitlines()
    assert 'hvdgrade_gradings{state="queued"} 1' in lines
    assert site.client(None, Host="grade.example.edu").get("/metrics").status_code == 404


def test_failed_tokens_are_counted_per_address_and_valid_ones_still_work(site):
    site.tokens["guess"] = "guess"
    codes = [site.client("guess").get("/api/submissions/x").status_code for _ in range(25)]
    assert codes[0] == 401 and codes[-1] == 429
    assert site.submit().status_code == 201


def test_a_service_below_a_prefix(engine):
    with service_site.running(engine, address="http://localhost/services/grade") as site:
        assert site.client().get("/healthz").status_code == 404
        assert site.client().get("/services/grade/healthz").status_code == 200
        page = site.browser("ada").get("/services/grade/").text
        assert 'href="/services/grade/a/cifar"' in page


def test_times_are_in_utc_in_the_database(site):
    site.submit()
    received = site.scalar(select(Submission.received))
    assert abs(received.timestamp() - time.time()) < 60
    assert received.tzinfo is not None and received.utcoffset() == datetime.timedelta(0)
