"""`hvdgrade serve` as a process: its links, its end, a worker next to it, and each reason not to start."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from serve_process import lines, started

from hvdgrade.service import database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
OURS = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "document"}


@contextlib.contextmanager
def signed_in(url: str):
    site, token = re.fullmatch(r"(http://\S+)/login\?token=(\S+)", url).groups()
    with httpx.Client(headers=OURS, timeout=60) as client:
        assert client.post(f"{site}/login", data={"token": token}).status_code == 303
        yield client


def test_everything_on_one_machine(tmp_path):
    with started(tmp_path, "--no-worker") as process:
        printed = lines(process, 5)
        (site,) = re.findall(r"http://\S+(?=\. Stop)", printed[0])
        links = re.findall(r"http://\S+", "\n".join(printed[1:3]))
        with signed_in(links[0]) as instructor, signed_in(links[1]) as learner:
            assert "the class" in instructor.get(f"{site}/").text
            assert learner.get(f"{site}/i/assessment").status_code == 404
            csrf = re.search(r'name="csrf" value="(\w+)"', learner.get(f"{site}/a/assessment").text)
            sent = {"csrf": csrf[1], "key": "k"}
            file = {"script": ("a.py", b"print('from a page')")}
            answer = learner.post(f"{site}/a/assessment", data=sent, files=file)
            assert answer.status_code == 303
            assert "Test learner" in instructor.get(f"{site}/i/assessment/queue").text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    log = (tmp_path / "errors").read_text()
    assert "POST /login 303" in log and "token" not in log and "from a page" not in log
    for path in (tmp_path / "runs/service", tmp_path / "runs/service/service.db"):
        assert path.stat().st_mode & 0o077 == 0
    with started(tmp_path, "--no-worker") as process:  # the class is still there, with new links
        new = re.findall(r"http://\S+", "\n".join(lines(process, 3)[1:]))
        with signed_in(new[1]) as learner:
            page = learner.get(f"{new[1].partition('/login')[0]}/a/assessment").text
            assert "attempt 1" in page
        old = links[0].rpartition("=")[2]
        answer = httpx.post(
            f"{new[0].partition('/login')[0]}/login", data={"token": old}, headers=OURS
        )
        assert answer.status_code == 403


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_worker_next_to_it_ends_with_it(tmp_path, end):
    with started(tmp_path) as process:
        link = lines(process, 2)[1].split()[-1]
        with signed_in(link) as instructor:
            site = link.partition("/login")[0]
            address = f"{site}/i/assessment/workers"
            while socket.gethostname() not in instructor.get(address).text:
                assert process.poll() is None
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        token = tmp_path / "runs/service/worker.token"
        assert token.stat().st_mode & 0o777 == 0o600
        process.send_signal(end)
        assert process.wait(60) == {signal.SIGKILL: -9}.get(end, 0)
        assert psutil.wait_procs(children, 60)[1] == []
    assert "Traceback" not in (tmp_path / "errors").read_text()


def refused(*arguments: str, folder: Path) -> str:
    command = [sys.executable, "-m", "hvdgrade.cli", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr


def test_each_reason_not_to_start_is_one_sentence(tmp_path):
    check = ("--check", "--no-worker")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        assert "in use. Choose another --listen" in refused(
            *check, "--listen", taken, folder=tmp_path
        )
    unknown = refused(*check, "--listen", "no.such.host.invalid:80", folder=tmp_path)
    assert (
        "cannot listen on no.such.host.invalid:80: " in unknown and "Unknown error" not in unknown
    )
    assert "HOST:PORT" in refused(*check, "--listen", "nowhere", folder=tmp_path)
    free = (*check, "--listen", "127.0.0.1:0")
    assert "neither" in refused(*free, "--database", "mysql://x/y", folder=tmp_path)
    config = tmp_path / "serve.toml"
    assert "cannot be read" in refused(*free, "--config", str(config), folder=tmp_path)
    for text, words in (
        ("address", "is not TOML"),
        ("adress = 'x'", "adress = 'x': extra inputs are not permitted"),
        ("address = 'grade.example.edu'", "address must be as https://"),
    ):
        config.write_text(text)
        assert words in refused(*free, "--config", str(config), folder=tmp_path)


def test_a_database_of_a_newer_version_is_refused_and_an_old_one_upgraded(tmp_path):
    url = f"sqlite:///{tmp_path}/service.db"
    free = ("--check", "--listen", "127.0.0.1:0", "--database", url)
    command = [sys.executable, "-m", "hvdgrade.cli", "serve", *free]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "the database is ready" in done.stdout) == (0, True)
    engine = database.connect(url)
    database.must_be_current(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    assert "newer version" in refused(*free, folder=tmp_path)
