"""The route of the button *Hand in*: a real Jupyter server, and a server that plays the service."""

import json
import socket
import urllib.error
import urllib.request

import jupyter_run
import pytest
from local_server import serving

pytest.importorskip("jupyter_server", reason="needs JupyterLab: run `make setup`")
pytestmark = pytest.mark.slow

STATUS = {"id": "s1", "number": 3, "state": "queued", "place": 2, "estimate_s": 240, "workers": 1}


class Service:
    """Answers what the test puts into `answers`, then STATUS."""

    def __init__(self):
        self.requests, self.answers = [], []

    def answer(self, request, connection):
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else (201, {}, json.dumps(STATUS).encode())
        if answer == "break":
            connection.connection.close()
            return None
        return answer


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    place, service = tmp_path_factory.mktemp("jupyter"), Service()
    (place / "served").mkdir()
    with serving(service.answer) as url:
        page = f"{url}/services/grade/a/hw1"
        variables = {"HVDGRADE_SERVICE_URL": page, "JUPYTERHUB_API_TOKEN": "hub-token"}
        with jupyter_run.running("server", place, place / "served", **variables) as jupyter:
            yield jupyter, service, url


@pytest.fixture
def jupyter(running):
    running[1].requests.clear()
    (running[0].served / "assessment.py").write_bytes(b"print('mine')\n")
    return running[0]


@pytest.fixture
def service(running):
    return running[1]


def ask(jupyter, body=None, token=True):
    """Return status and JSON of the route's answer."""
    request = urllib.request.Request(
        f"{jupyter.address}/hvdgrade/handin",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"token {jupyter.token}"} if token else {},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_sends_the_script_as_the_user_of_the_server(jupyter, service, running):
    assert ask(jupyter) == (200, {"page": f"{running[2]}/services/grade/a/hw1"})
    code, answer = ask(jupyter, {"path": "assessment.py", "key": "k1"})
    assert (code, answer) == (200, STATUS | {"link": f"{running[2]}/services/grade/s/s1"})
    (request,) = service.requests
    assert request.path == "/services/grade/api/a/hw1/submissions"
    assert request.body == b"print('mine')\n"
    assert request.headers["Authorization"] == "Bearer hub-token"
    assert request.headers["Idempotency-Key"] == "k1"


@pytest.mark.parametrize("answer", ["break", (503, {}, b"{}"), (502, {}, b"<p>bad gateway")])
def test_says_that_there_was_no_answer(jupyter, service, answer):
    service.answers = [answer]
    code, said = ask(jupyter, {"path": "assessment.py", "key": "k1"})
    assert code == 503 and said["message"].startswith("The service gave no answer")
    assert ask(jupyter, {"path": "assessment.py", "key": "k1"})[0] == 200
    assert [request.headers["Idempotency-Key"] for request in service.requests] == ["k1", "k1"]


@pytest.mark.parametrize(
    "answer, message",
    [
        ((403, {}, b'{"error": "hw1 closed on Monday."}'), "hw1 closed on Monday."),
        ((429, {}, b'{"error": "wait 30 s."}'), "wait 30 s."),
        ((401, {}, b'{"error": "unknown"}'), "unknown"),
        ((404, {}, b"<p>nginx"), "which is no answer of the service."),
        ((302, {"Location": "http://127.0.0.1:9"}, b""), "answered 302, which is no answer"),
        ((201, {}, b"[]"), "answered 201, which is no answer"),
    ],
)
def test_shows_why_the_service_refuses(jupyter, service, answer, message):
    service.answers = [answer]
    code, said = ask(jupyter, {"path": "assessment.py", "key": "k1"})
    assert code == 409 and message in said["message"]
    assert len(service.requests) == 1


def test_sends_only_what_its_user_may_read(jupyter, service, tmp_path):
    for body in ({"path": "assessment.py"}, {"key": "k"}, [], {"path": 1, "key": "k"}):
        assert ask(jupyter, body)[0] == 400
    assert ask(jupyter, {"path": "assessment.py", "key": "a\nb"})[0] == 400
    (tmp_path / "other.py").write_text("secret")
    (jupyter.served / "link.py").symlink_to(tmp_path / "other.py")
    assert ask(jupyter, {"path": "link.py", "key": "k"})[0] == 404
    assert ask(jupyter, {"path": "missing.py", "key": "k"})[0] == 404
    (jupyter.served / "large.py").write_bytes(b"#" * 70_000)
    assert ask(jupyter, {"path": "large.py", "key": "k"})[0] == 400
    assert ask(jupyter, {"path": "assessment.py", "key": "k"}, token=False)[0] == 403
    assert ask(jupyter, token=False)[0] == 403
    assert service.requests == []


@pytest.mark.parametrize("page", ["https://grade.example.edu", "ftp://x/a/hw1"])
def test_a_wrong_setting_is_explained(tmp_path, page):
    (tmp_path / "served").mkdir()
    (tmp_path / "served/assessment.py").write_text("")
    variables = {"HVDGRADE_SERVICE_URL": page, "HVDGRADE_TOKEN": "t"}
    with jupyter_run.running("server", tmp_path, tmp_path / "served", **variables) as jupyter:
        code, said = ask(jupyter, {"path": "assessment.py", "key": "k"})
    assert code == 500 and "HVDGRADE_SERVICE_URL must be an address" in said["message"]


def test_no_service_no_button(tmp_path):
    (tmp_path / "served").mkdir()
    with jupyter_run.running("server", tmp_path, tmp_path / "served") as jupyter:
        assert ask(jupyter) == (200, {"page": None})


def test_a_server_that_is_away_is_asked_again(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        page = f"http://127.0.0.1:{free.getsockname()[1]}/a/hw1"
        (tmp_path / "served").mkdir()
        (tmp_path / "served/assessment.py").write_text("")
        variables = {"HVDGRADE_SERVICE_URL": page, "HVDGRADE_TOKEN": "t"}
        with jupyter_run.running("server", tmp_path, tmp_path / "served", **variables) as jupyter:
            assert ask(jupyter, {"path": "assessment.py", "key": "k"})[0] == 503
