"""The HTTP requests of the Assess button, sent to a real Jupyter server that runs real gradings."""

import contextlib
import http.cookiejar
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import jupyter_run
import psutil
import pytest

from hvdgrade import run_command
from hvdgrade.jupyter import runner
from hvdgrade.run import orphans

pytest.importorskip("jupyter_server", reason="needs JupyterLab: run `make setup`")

ROOT = Path(__file__).parents[3]
SUBMISSIONS = ROOT / "tests/fixtures/submissions"
# Ranks that compute without end, each with a daemon that left its session; none listens to SIGTERM.
STUBBORN = """\
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/usr/bin/sleep", ["sleep", "1000"], {})
    os._exit(0)
while True:
    sum(range(1_000_000))
"""


class Server:
    """What a client sees of a running Jupyter server: `ask` sends it a request."""

    def __init__(self, jupyter: jupyter_run.Jupyter, temporary: Path):
        self.address, self.token, self.process = jupyter.address, jupyter.token, jupyter.process
        self.folder, self.temporary = jupyter.served, temporary

    def ask(self, method, body=None, what="assess", token=True, opener=None, **headers):
        """Status, body (JSON where it is), headers of the answer; 0 as status if there is none."""
        request = urllib.request.Request(
            f"{self.address}/hvdgrade/{what}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=({"Authorization": f"token {self.token}"} if token else {}) | headers,
        )
        try:
            answer = (opener or urllib.request.build_opener()).open(request, timeout=30)
        except urllib.error.HTTPError as error:
            answer = error
        except OSError:
            return 0, None, {}
        with answer:
            text = answer.read()
        if "json" in answer.headers["Content-Type"]:
            return answer.status, json.loads(text, parse_constant=pytest.fail), answer.headers
        return answer.status, text.decode(), answer.headers

    def assess(self, source, name="assessment.py", **request):
        """Press the button on a script with this source."""
        (self.folder / name).write_text(source)
        return self.ask("POST", {"path": name, "ranks": 2, "profile": "dli", **request})

    def status(self) -> dict:
        return self.ask("GET")[1]

    def until(self, *states, seconds=120) -> dict:
        """The status once it is one of these."""
        wait(lambda: self.status()["state"] in states, self.status, seconds)
        return self.status()

    def started(self, ranks=2) -> list[psutil.Process]:
        """Every process of the grading, once each rank of STUBBORN and its daemon run."""

        def daemons():
            return [p for p in self.process.children(True) if words(p) == "sleep 1000"]

        wait(lambda: len(daemons()) == ranks, self.status, 120)
        return self.process.children(recursive=True)


def words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def wait(condition, explain=lambda: "", seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.2)


def gone(processes, seconds=60) -> list[str]:
    """Those that still run, in words."""
    return [words(process) for process in psutil.wait_procs(processes, timeout=seconds)[1]]


@contextlib.contextmanager
def serving(place, data):
    for name in ("served", "tmp"):
        (place / name).mkdir()
    # A file of the learner's with the name of a module that the grader imports.
    (place / "served/random.py").write_text("raise SystemExit('this is not the random')")
    variables = {"HVDLAB_DATA": data, "TMPDIR": place / "tmp"}
    with jupyter_run.running("server", place, place / "served", **variables) as jupyter:
        yield Server(jupyter, place / "tmp")


@pytest.fixture(scope="module")
def shared(tmp_path_factory, cifar10_folder):
    with serving(tmp_path_factory.mktemp("shared"), cifar10_folder) as server:
        yield server


@pytest.fixture
def server(shared):
    """The server of this module, with nothing running before and after."""
    assert shared.status()["state"] not in ("running", "cancelling")
    yield shared
    shared.ask("DELETE")
    shared.until("idle", "done", "failed", "cancelled")


@pytest.mark.parametrize(
    ("name", "package", "folder"),
    [
        ("hvdgrade-assess", "hvdgrade", "assessment/hvdgrade/jupyter"),
        ("hvdlab-course", "hvdlab", "labs/hvdlab/jupyter"),
    ],
)
def test_what_is_installed_is_what_is_in_this_tree(name, package, folder):
    installed = Path(sys.prefix) / "share/jupyter/labextensions" / name
    extension = ROOT / folder / "labextension"
    files = [path.relative_to(extension) for path in extension.rglob("*.*")]
    assert len(files) >= 5
    for file in files:
        assert (installed / file).read_text() == (extension / file).read_text(), "run `make setup`"
    switch = Path(sys.prefix) / f"etc/jupyter/jupyter_server_config.d/{package}.json"
    enabled = json.loads(switch.read_text())["ServerApp"]["jpserver_extensions"]
    assert enabled == {f"{package}.jupyter": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, what",
    [("GET", "assess"), ("POST", "assess"), ("DELETE", "assess"), ("GET", "report")],
)
def test_a_stranger_gets_nothing(server, method, what):
    (server.folder / "assessment.py").write_text(STUBBORN)
    body = {"path": "assessment.py"} if method == "POST" else None
    before = server.status()
    for headers in ({}, {"Authorization": "token 0123"}):
        code, answer, _ = server.ask(method, body, what, token=False, **headers)
        assert code == 403 and "path" not in answer
    assert server.status()["number"] == before["number"]


def test_another_site_cannot_press_the_button(server):
    """As a browser: logged in by cookie, a request needs the token that only our own pages know."""
    cookies = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
    browser.open(f"{server.address}/login", timeout=30).close()
    xsrf = next(cookie.value for cookie in cookies if cookie.name == "_xsrf")
    form = urllib.parse.urlencode({"password": server.token, "_xsrf": xsrf}).encode()
    with contextlib.suppress(urllib.error.HTTPError):  # it leads to a page that is not there
        browser.open(f"{server.address}/login", data=form, timeout=30).close()

    def press(**headers):
        body = {"path": "no such file.py"}
        return server.ask("POST", body, token=False, opener=browser, **headers)[0]

    assert server.ask("GET", token=False, opener=browser)[0] == 200
    assert press() == 403
    assert press(**{"X-XSRFToken": "2|wrong|wrong|1"}) == 403
    assert press(**{"X-XSRFToken": xsrf}) == 404
    # Nor may a page of another site read what it can ask for.
    elsewhere = {"Origin": "http://elsewhere.example"}
    assert server.ask("GET", token=False, opener=browser, **elsewhere)[0] == 404
    assert server.ask("DELETE", token=False, opener=browser)[0] == 403


REFUSED = {
    "no such.py": 404,
    "../outside/assessment.py": 404,
    "folder/../../outside/assessment.py": 404,
    "/etc/hostname": 404,
    "link to a file.py": 404,
    "link to a folder/assessment.py": 404,
    "loop.py": 404,
    ".hidden.py": 404,
    ".hidden/assessment.py": 404,
    "null\0byte.py": 404,
    "x" * 5000: 404,
    "folder": 404,
    "fifo.py": 404,
    "socket.py": 404,
    "large.py": 400,
    "": 400,
    "/": 400,
}


@pytest.mark.parametrize("path", [*REFUSED, None, 7, ["assessment.py"]], ids=lambda p: repr(p)[:40])
def test_what_the_user_may_not_read_is_not_graded(server, path):
    outside = server.folder.parent / "outside"
    if not outside.exists():
        outside.mkdir()
        (outside / "assessment.py").write_text("SECRET = 1")
        for folder in ("folder", ".hidden"):
            (server.folder / folder).mkdir()
        (server.folder / ".hidden/assessment.py").write_text("")
        (server.folder / ".hidden.py").write_text("")
        (server.folder / "link to a file.py").symlink_to(outside / "assessment.py")
        (server.folder / "link to a folder").symlink_to(outside)
        (server.folder / "loop.py").symlink_to("loop.py")
        (server.folder / "large.py").write_text("#" * 200_001)
        os.mkfifo(server.folder / "fifo.py")
        with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(server.folder):
            listener.bind("socket.py")
    before = server.status()["number"]
    code, answer, _ = server.ask("POST", {"path": path, "ranks": 2, "profile": "dli"})
    assert code == (REFUSED[path] if isinstance(path, str) else 400)
    assert answer["message"][0].isalpha() and len(answer["message"]) < 250
    assert str(outside) not in str(answer)
    assert server.status()["number"] == before


@pytest.mark.parametrize(
    "wrong, named",
    [
        *(({"ranks": ranks}, "ranks must be in 1..") for ranks in (0, -1, 65, 2.0, "2", True, None)),
        *(({"profile": name}, "profile must be one of cpu, dli") for name in ("no", ["cpu"], None)),
    ],
)  # fmt: skip
def test_other_wrong_requests_get_a_sentence(server, wrong, named):
    before = server.status()["number"]
    code, answer, _ = server.assess(STUBBORN, **wrong)
    assert code == 400 and named in answer["message"]
    assert server.status()["number"] == before


def test_a_body_that_is_no_object_is_refused(server):
    for body in (None, [], "assessment.py", 7):
        assert server.ask("POST", body)[0] == 400


def test_of_another_servers_grading_no_state_is_told(server, monkeypatch):
    """The page would show this server's last one in its place, and next assess that script."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(server.temporary.parent / "RUNTIME"))
    with runner.one_grading_per_user():
        code, answer, _ = server.assess(STUBBORN)
    assert code == 409 and "Another JupyterLab of yours is grading" in answer["message"]
    assert "state" not in answer and server.status()["state"] != "running"


@pytest.mark.mpi
@pytest.mark.slow
def test_a_grading_from_the_press_to_the_report(server):
    source = (SUBMISSIONS / "crashes/assessment.py").read_text()
    expected = tomllib.loads((SUBMISSIONS / "crashes/expected.toml").read_text())
    code, first, _ = server.assess(source)
    assert (code, first["state"], first["path"]) == (201, "running", "assessment.py")
    assert server.ask("GET", what="report")[0] == 404  # not yet, and not an older one

    code, second, _ = server.assess(STUBBORN, "other_assessment.py", ranks=1)
    assert code == 409 and "Another grading is running" in second["message"]
    assert {name: second[name] for name in ("number", "path", "ranks", "profile")} == {
        name: first[name] for name in ("number", "path", "ranks", "profile")
    }

    last = server.until("done", "failed")
    assert last["state"] == "done", last
    assert last["result"]["verdict"] == expected["verdict"]
    states = {check["title"]: check["state"] for check in last["result"]["checks"]}
    assert "fail" in states.values() and len(states) >= 5
    assert last["progress"]["stage"] == "done" and last["progress"]["code"] == 1
    assert list(server.temporary.glob("hvdgrade-assess-*"))  # what a stop must remove

    assert last["report"]
    code, page, headers = server.ask("GET", what=f"report?{last['number']}")
    assert server.ask("GET", what="report")[:2] == (200, page)
    assert server.ask("GET", what=f"report?{last['number'] - 1}")[0] == 404  # its report is gone
    assert code == 200 and headers["Content-Type"].startswith("text/html")
    assert page.lstrip().lower().startswith("<!doctype html>") and "FAIL" in page.upper()
    directives = [part.split() for part in headers["Content-Security-Policy"].split(";")]
    policy = {name: rest for name, *rest in reversed([d for d in directives if d])}
    assert policy["sandbox"] == [] and policy["default-src"] == ["'none'"]
    assert policy["frame-ancestors"] == ["'self'"]
    assert "script-src" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.mpi
def test_temporary_files_that_were_cleared_away_are_made_anew(server):
    before = server.status()
    shutil.rmtree(server.temporary)
    code, answer, _ = server.assess(STUBBORN)
    server.temporary.mkdir()
    assert (code, answer["message"]) == (
        507,
        "The grading cannot start: No such file or directory.",
    )
    assert server.status()["number"] == before["number"]
    assert server.assess(STUBBORN)[0] == 201
    (folder,) = server.temporary.glob("hvdgrade-assess-*")
    assert folder.stat().st_mode & 0o77 == 0
    server.started()


@pytest.mark.mpi
@pytest.mark.slow
def test_cancelling_leaves_nothing(server):
    assert server.assess(STUBBORN)[0] == 201
    processes = server.started()
    code, answer, _ = server.ask("DELETE")
    assert code == 200 and answer["state"] in ("cancelling", "cancelled")
    last = server.until("cancelled")
    assert last["result"] is None and not last["report"]
    assert gone(processes, 5) == []
    assert server.process.children(recursive=True) == []
    assert server.ask("DELETE")[1]["state"] == "cancelled"  # once more does no harm


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.thorough
def test_a_grader_that_does_not_answer_is_killed(server):
    assert server.assess(STUBBORN)[0] == 201
    processes = server.started()
    (grader,) = (p for p in processes if "hvdgrade.cli" in words(p))
    grader.suspend()
    server.ask("DELETE")
    server.until("cancelled", seconds=4 * orphans.GRACE_SECONDS)
    assert gone(processes, 5) == []
    left = [file.name for file in server.temporary.glob("hvdgrade-*") if file.is_dir()]
    assert len(left) == 1 and left[0].startswith("hvdgrade-assess-")


@pytest.mark.mpi
@pytest.mark.slow
def test_a_grading_that_lost_its_guard_ends(server):
    assert server.assess(STUBBORN)[0] == 201
    processes = server.started()
    (guard,) = server.process.children()
    guard.kill()
    assert server.until("failed")["message"]
    assert gone(processes) == []


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_server(tmp_path, cifar10_folder, ending):
    with serving(tmp_path, cifar10_folder) as server:
        assert server.assess(STUBBORN)[0] == 201
        processes = server.started()
        server.process.send_signal(ending)
        server.process.wait(60)
        assert gone(processes, 0 if ending == signal.SIGTERM else 60) == []
        if ending == signal.SIGTERM:
            assert not any(file.is_dir() for file in server.temporary.glob("hvdgrade*"))


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files of this process and of those that it starts."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path


def test_one_grading_a_user_whichever_server_began_it(temporary):
    one, other = runner.Runner(), runner.Runner()
    try:
        one.start("assessment.py", b"no Python", 2, "dli")
        with pytest.raises(runner.Busy, match="Another JupyterLab of yours"):
            other.start("assessment.py", b"no Python", 2, "dli")
        assert other.status()["state"] == "idle" and one.running
        # The grading has the lock, not the server: one that is killed leaves it to the grading.
        one.cancel()
        one.process.wait(60)
        other.start("assessment.py", b"no Python", 2, "dli")
    finally:
        one.close()
        other.close()
    assert [file.name for file in temporary.iterdir()] == ["runtime"]
    (lock,) = (temporary / "runtime").iterdir()
    assert lock.suffix == ".lock"
    assert lock.parent.stat().st_mode & 0o077 == 0  # nobody else can take it


def test_a_report_of_an_earlier_server_is_none_of_a_later_one(temporary):
    """A panel that was left open asks for the report by the number that its grading had."""
    servers = [runner.Runner() for _ in range(2)]
    try:
        for server in servers:
            server.start("assessment.py", b"no Python", 2, "dli")
            server.process.wait(60)
        assert servers[0].status()["number"] != servers[1].status()["number"]
    finally:
        for server in servers:
            server.close()


def test_what_a_killed_server_left_is_removed_by_the_next(temporary):
    alive, dead = runner.Runner(), runner.Runner()
    dead.held.release()  # as the kernel does it
    (temporary / "hvdgrade-assess-just-made").mkdir()
    (temporary / "hvdgrade-assess-link").symlink_to(alive.folder)
    (dead.folder / "report.html").touch()
    new = runner.Runner()
    assert {file.name for file in temporary.iterdir()} == {
        *(alive.folder.name, new.folder.name),
        *("hvdgrade-assess-just-made", "hvdgrade-assess-link"),
    }


@pytest.mark.parametrize(
    "printed, code, said",
    [
        ("hvdgrade: /x cannot be written: full\n", 3, "/x cannot be written: full"),
        (
            "running the submission ...\nTraceback (most recent call last):\n  File x\nOSError: no space\n"
            "hvdgrade: this is a fault of the grader; please report the lines above\n",
            3,
            "OSError: no space",
        ),
        (
            "running the submission ...\n",
            137,
            "the grader was ended by signal 9, perhaps because there was too little memory.",
        ),
        ("", 3, "the grader ended with exit code 3."),
    ],
)
def test_why_there_is_no_result(tmp_path, printed, code, said):
    log = tmp_path / "log"
    log.write_text(printed)
    assert runner.failure_reason(log, code) == f"{said} Its whole output is in {log}."


def test_the_progress_of_a_talkative_script_stays_short(tmp_path):
    epochs = [
        {"epoch": i, "seconds": 1.0, "reported": {f"{j}": j for j in range(10_000)}}
        for i in range(300)
    ]
    with run_command.Progress(tmp_path / "progress") as tell:
        tell("", stage="running", epochs=epochs)
    shown = runner.progress(tmp_path / "progress")["epochs"]
    assert [each["epoch"] for each in shown] == list(range(100, 300))
    assert shown[-1]["reported"] == {f"{j}": j for j in range(20)}


def test_the_progress_is_read_as_it_was_meant(tmp_path):
    epoch = {"epoch": 0, "seconds": 3.5, "reported": {"accuracy": 0.5, "loss": float("nan")}}
    events = [
        {"t": 1, "stage": "calibrating", "text": "measuring ...", "epochs": [{"epoch": 9}]},
        {"t": 2, "stage": "running", "text": "running the submission ..."},
        {"t": 6, "stage": "running", "text": "", "seconds": 4.0, "limit": 240, "epochs": [epoch]},
        {"t": 7, "stage": "probing", "text": "probing ...", "epochs": [{"epoch": 8}]},
    ]
    path, lines = tmp_path / "progress", [json.dumps(event) + "\n" for event in events]
    seen = []
    for line in lines:
        with path.open("a") as file:
            file.write(line[:7])
            file.flush()
            before = runner.progress(path)
            assert before.get("t") == (
                seen[-1]["t"] if seen else None
            )  # an incomplete line is ignored
            file.write(line[7:])
        seen.append(runner.progress(path))
    clocks = [(now["seconds"], now["limit"]) for now in seen]
    assert clocks == [(None, None), (None, None), (4.0, 240), (None, None)]
    shown = [{**epoch, "reported": {"accuracy": 0.5, "loss": None}}]
    assert [now.get("epochs") for now in seen] == [None, [], shown, shown]
    titles = ["measuring", "running the submission", "running the submission", "probing"]
    assert [now["title"] for now in seen] == titles
    json.dumps(seen, allow_nan=False)
    assert runner.progress(tmp_path / "none") == {}
