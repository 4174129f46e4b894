"""Processes that claim and finish are killed with SIGKILL, PostgreSQL is stopped at once: nothing is lost."""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import queue_processes
from service_class import ServiceClass
from sqlalchemy import func, select

from hvdgrade.service import database
from hvdgrade.service.models import Grading, Submission

PROGRAM = Path(queue_processes.__file__)
SPEED = 20  # a lease of 60 s runs out after 3 s


class Crowd:
    """Processes that hand in and grade, in a folder with their logs."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder, self.running = url, folder, {}
        with open(folder / "errors", "ab") as errors:
            self.starter = subprocess.Popen(
                [sys.executable, PROGRAM],
                env=os.environ | {"PYTHONPATH": str(PROGRAM.parent)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def start(self, what: str, name: str, *more: float) -> None:
        print(
            json.dumps([what, self.url, name, str(self.folder), SPEED, *more]),
            file=self.starter.stdin,
            flush=True,
        )
        self.running[name] = psutil.Process(int(self.starter.stdout.readline()))

    def told(self, what: str) -> list[list]:
        """Return the lines of all logs that begin with a word."""
        lines = [
            line for log in self.folder.glob("*.jsonl") for line in log.read_text().splitlines()
        ]
        return [words for words in map(json.loads, filter(None, lines)) if words[0] == what]

    def kill_one_that_grades(self, deadline: float) -> None:
        """Wait until somebody has claimed, kill one, and start it again with the same name."""
        before = len(self.told("claimed"))
        wait(lambda: len(self.told("claimed")) > before, deadline)
        name = random.choice(sorted(set(self.running) - {"submitter"}))
        self.running[name].kill()
        self.running[name].wait()
        self.start("grade", name)

    def ended(self) -> bool:
        return not any(process.is_running() for process in self.running.values())

    def end(self) -> None:
        for process in self.running.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.starter.communicate(timeout=60)


def wait(condition, deadline: float) -> None:
    while not condition():
        assert time.monotonic() < deadline, "too slow"
        time.sleep(0.02)


def play(url: str, folder: Path, people: int, submissions: int, workers: int, kills: int, seconds: float,
         limit: float, stop=None) -> dict:  # fmt: skip
    """Hand in and grade with kills, and return the numbers of what happened."""
    engine = database.connect(url)
    with database.transaction(engine) as session:
        course = ServiceClass(session, people)
        for name in range(workers):
            course.new_worker(str(name))
    crowd, deadline = Crowd(url, folder), time.monotonic() + limit
    try:
        for name in range(workers):
            crowd.start("grade", str(name))
        crowd.start("submit", "submitter", 0, submissions, seconds)
        for number in range(kills):
            crowd.kill_one_that_grades(deadline)
            if stop and number in (kills // 3, 2 * kills // 3):
                stop()
        wait(crowd.ended, deadline)
    finally:
        crowd.end()
    assert (folder / "errors").read_text() == ""
    waits = [words[1] for words in crowd.told("submitted")]
    with database.reading(engine) as session:
        wrong = queue_processes.lost_twice_or_crossed(session)
        states = dict(
            session.execute(select(Grading.state, func.count()).group_by(Grading.state)).all()
        )
        made = session.scalar(select(func.count(Submission.id)))
        again = session.scalar(select(func.sum(Grading.tries - 1)))
    engine.dispose()
    finished = [grading for _, grading, _ in crowd.told("finished")]
    p95 = statistics.quantiles(waits, n=20)[-1] if len(waits) > 1 else waits[0]
    return {
        "submissions": made, "states": states, "claimed again": again, **wrong,
        "reported twice": len(finished) - len(set(finished)), "submit p95 ms": round(1000 * p95),
    }  # fmt: skip


def nothing_went_wrong(found: dict, submissions: int) -> None:
    assert (found["lost"], found["twice"], found["crossed"]) == ([], [], [])
    assert found["submissions"] == submissions and set(found["states"]) == {"done"}
    assert found["reported twice"] == 0


@pytest.mark.slow
def test_killed_processes_lose_nothing_and_grade_nothing_twice(url, tmp_path):
    found = play(url, tmp_path, people=40, submissions=60, workers=8, kills=4, seconds=3, limit=240)
    nothing_went_wrong(found, 60)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_deadline_of_500_people_with_20_kills_and_stops_of_postgresql(
    url, kind, request, tmp_path, capsys
):
    def stop() -> None:
        server = request.getfixturevalue("postgres")
        server.stop()
        server.start()

    found = play(url, tmp_path, people=500, submissions=880, workers=12, kills=20, seconds=15, limit=1500,
                 stop=stop if kind == "postgresql" else None)  # fmt: skip
    with capsys.disabled():
        print(f"\n{kind}: {found}")
    nothing_went_wrong(found, 880)
