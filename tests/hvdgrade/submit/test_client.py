"""`hvdgrade submit` against a server that behaves by the contract, loses connections, and refuses."""

import ast
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import submission_server
from submission_server import TOKEN, running

from hvdgrade import cli
from hvdgrade.submit import client

QUEUED = {"state": "queued", "place": 2}
DONE = {"state": "done", "exit_code": 0, "message": "PASS: 100 of 100 points"}


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "assessment.py"
    path.write_text("print('hello')\n")
    return path


@pytest.fixture
def submit(script, capfd, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `hvdgrade submit` with short pauses: exit code, stdout, stderr."""
    for name in ("POLL_SECONDS", "FIRST_PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(client, name, 0.02)
    for name in ("HVDGRADE_ID_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HVDGRADE_TOKEN", TOKEN)

    def run(url: str, *arguments: object) -> tuple[int, str, str]:
        words = ["submit", script, "--server", url, "--assignment", "cifar", *arguments]
        return cli.main(list(map(str, words))), *capfd.readouterr()

    return run


def keys(server: submission_server.Server) -> list[str]:
    return [h["idempotency-key"] for method, _, h in server.requests if method == "POST"]


def test_it_hands_in_once_and_says_what_it_is_called(submit, script):
    with running([QUEUED]) as server:
        code, _, said = submit(server.url)
        assert code == 0 and f"{script}: submission s-1, number 1" in said
        assert submit(server.url + "/")[0] == 0
    assert len(set(keys(server))) == 2  # each call hands in again
    assert {path for _, path, _ in server.requests} == {"/api/a/cifar/submissions"}


@pytest.mark.parametrize(
    "failure",
    [
        "lose request", "lose answer", "half an answer", (502, "bad gateway"), (503, "database away", "0"),
        (504, "too slow"), (507, "disk full"), (429, "one upload at a time", "0"),
    ],
)  # fmt: skip
def test_it_repeats_with_the_same_key_until_it_has_an_answer(failure, submit):
    with running([QUEUED], failures=[failure, None, failure]) as server:
        assert submit(server.url)[0] == 0
        assert len(keys(server)) == 2 and len(set(keys(server))) == 1
        assert len(server.submissions) == 1


def test_it_waits_for_a_server_that_starts_later(submit, script):
    with running([QUEUED]) as server:
        url = server.url
    code, _, said = submit(url, "--limit", 0.3)
    assert code == client.FAULT and "no answer in time" in said and "Connection refused" in said


@pytest.mark.parametrize(
    "failure, code, sentence",
    [
        ((401, "unknown token"), 2, "(401): unknown token"),
        ((403, "closed since 3 September"), 2, "(403): closed since 3 September"),
        ((404, "no such assignment"), 2, "(404): no such assignment"),
        ((413, "larger than 64 kB"), 2, "(413): larger than 64 kB"),
        ((429, "you may hand in again in an hour", "3600"), 2, "you may hand in again in an hour"),
        ((503, "database away", "3600"), 3, "(503): database away"),
        ((302, "moved", "http://127.0.0.1:1/elsewhere"), 2, "(302): moved"),
        ((500, "a bug"), 2, "(500): a bug"),
    ],
)
def test_a_refusal_is_one_sentence_and_is_not_repeated(failure, code, sentence, submit):
    with running([QUEUED], failures=[failure]) as server:
        found, printed, said = submit(server.url, "--limit", 60)
        assert (found, printed) == (code, "") and said == f"hvdgrade submit: {said[17:]}"
        assert sentence in said and said.count("\n") == 1 and len(server.requests) == 1


def test_it_prints_each_change_and_each_line_once(submit):
    alone = {"state": "queued", "place": 1, "workers": 0}
    course = [
        QUEUED,
        QUEUED,
        alone,  # this answer is lost
        alone,
        {"state": "leased", "progress": "epoch 1\nepoch 2"},
        {"state": "leased", "progress": "epoch 1\nepoch 2\nepoch \x1b[2J3"},
        {"state": "leased", "progress": "epoch 2\nepoch \x1b[2J3\nepoch 4"},
        DONE,
    ]
    with running(course, failures=[None, None, "lose answer", (503, "away", "0")]) as server:
        code, printed, said = submit(server.url, "--wait")
    assert (code, printed) == (0, "")
    assert [line for line in said.splitlines()[1:] if "Again in" not in line] == [
        *("queued, place 2", "queued, place 1, no worker is online", "running", "  epoch 1"),
        *("  epoch 2", "  epoch \ufffd[2J3", "  epoch 4", "done", DONE["message"]),
    ]


@pytest.mark.parametrize(
    "end, code",
    [
        (DONE, 0), ({"state": "done", "exit_code": 1}, 1), ({"state": "done", "exit_code": 2}, 2),
        ({"state": "fault", "exit_code": 3}, 3), ({"state": "fault", "exit_code": None}, 3),
        ({"state": "replaced"}, 2), ({"state": "cancelled"}, 2),
    ],
)  # fmt: skip
def test_the_exit_code_is_that_of_a_grading(end, code, submit):
    with running([QUEUED, end]) as server:
        assert submit(server.url, "--wait")[0] == code


def test_it_gives_up_when_the_estimate_is_longer_than_its_limit(submit):
    with running([QUEUED | {"estimate_s": 1200}]) as server:
        code, _, said = submit(server.url, "--wait", "--limit", 600)
        assert code == client.FAULT and len(server.requests) == 1
        assert "no result within the time limit, queued, place 2" in said
        code, _, said = submit(server.url, "--wait", "--limit", 0.3)
        assert code == client.FAULT


def test_it_writes_what_the_platform_gets(submit, tmp_path):
    output = tmp_path / "junit.xml"
    payloads = {"junit": "<testsuites>é</testsuites>\n", "classroom50": None}
    with running([DONE | {"exit_code": 1}], payloads=payloads) as server:
        arguments = ("--format", "junit")
        assert submit(server.url, *arguments, "--output", output)[:2] == (1, "")
        assert output.read_text(encoding="utf-8") == payloads["junit"]
        assert submit(server.url, *arguments)[:2] == (1, payloads["junit"])
        server.course = [{"state": "fault", "exit_code": 3}]
        code, printed, said = submit(
            server.url, "--format", "classroom50", "--output", tmp_path / "no"
        )
        assert (code, printed) == (3, "") and "there is nothing to write" in said
        assert not (tmp_path / "no").exists()


def test_a_platform_says_for_whom_it_hands_in(submit):
    about = ("--learner", "zoë@uni.edu", "--learner-name", "Zoë\r\nX: 1", "--key", "gradescope-7")
    with running([DONE]) as server:
        assert submit(server.url, *about)[0] == 0
        assert submit(server.url, *about)[0] == 0
        [(key, (person, _))] = server.submissions.items()
        assert (key, person) == ("gradescope-7", "zoë@uni.edu")
        assert "x" not in server.requests[0][2]
        code, _, said = submit(server.url, "--key", "gradescope-7")
        assert code == 2 and "this key belongs to another submission" in said


def test_the_token_comes_from_a_file_the_environment_or_the_job(submit, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("of the file\n")
    with running([DONE], tokens={"of the file", "of GitLab"}) as server:
        assert submit(server.url)[0] == 2
        assert submit(server.url, "--token-file", tmp_path / "token")[0] == 0
        monkeypatch.delenv("HVDGRADE_TOKEN")
        code, _, said = submit(server.url)
        assert code == 2 and "no token: name its file" in said
        monkeypatch.setenv("HVDGRADE_ID_TOKEN", "of GitLab")
        assert submit(server.url)[0] == 0
        code, _, said = submit(server.url, "--token-file", tmp_path / "none")
        assert code == 2 and "none cannot be read" in said


class GitHub(BaseHTTPRequestHandler):
    """GitHub's service that gives a job its tokens."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        body = json.dumps({"value": f"token {len(self.server.asked)}"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def test_a_job_of_github_gets_tokens_for_this_server_from_github(submit, monkeypatch):
    github = ThreadingHTTPServer(("127.0.0.1", 0), GitHub)
    github.asked = []
    thread = threading.Thread(target=github.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.delenv("HVDGRADE_TOKEN")
    address = f"http://127.0.0.1:{github.server_port}/token?version=2"
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", address)
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "a secret of the job")
    try:
        with running([QUEUED, DONE], tokens={"token 1"}) as server:
            assert submit(server.url, "--wait")[0] == 0
            audience = server.url.replace(":", "%3A").replace("/", "%2F")
            expected = f"/token?version=2&audience={audience}", "Bearer a secret of the job"
            assert github.asked == [expected]  # one token for both requests
        monkeypatch.setattr(client, "TOKEN_SECONDS", 0)  # as if each were old
        with running([QUEUED, DONE], tokens={"token 2", "token 3"}) as server:
            assert submit(server.url, "--wait")[0] == 0 and len(github.asked) == 3
    finally:
        github.shutdown()
        thread.join()
        github.server_close()


def test_wrong_usage_is_one_sentence(submit, script):
    for url in ("grade.example.edu", "file:///etc/passwd", "https://"):
        code, _, said = submit(url)
        assert code == 2 and "--server must be like https://" in said and said.count("\n") == 1
    script.write_bytes(b"#" * ((64 << 10) + 1))
    code, _, said = submit("http://127.0.0.1:1")
    assert code == 2 and "larger than 64 kB" in said
    script.unlink()
    code, _, said = submit("http://127.0.0.1:1")
    assert code == 2 and "cannot be read: No such file" in said


def test_what_is_no_server_of_ours_is_named(submit):
    with running([DONE], payloads={}) as server:
        server.status = lambda: {"hello": 1}
        code, _, said = submit(server.url)
        assert code == client.FAULT and "look at --server" in said


def test_a_copy_of_the_file_needs_only_the_standard_library(script, tmp_path):
    path = Path(client.__file__)
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {n.module if isinstance(n, ast.ImportFrom) else a.name for n in nodes for a in n.names}
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names
    copy = shutil.copy(path, tmp_path / "client.py")
    with running([DONE]) as server:
        answer = subprocess.run(
            [sys.executable, "-IS", copy, script, "--server", server.url, "--assignment", "cifar", "--wait"],
            capture_output=True, text=True, timeout=120, env={"HVDGRADE_TOKEN": TOKEN},
        )  # fmt: skip
    assert answer.returncode == 0 and DONE["message"] in answer.stderr
