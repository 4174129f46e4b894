"""Processes that hand in and grade against a real database, and may be killed at any moment.

    python queue_processes.py      # reads a JSON list per line, starts a process for it, prints its number
    ["grade", URL, NAME, FOLDER, SPEED]                             # claim and finish until nothing is open
    ["submit", URL, NAME, FOLDER, SPEED, FIRST, LAST, SECONDS]      # hand in the scripts FIRST to LAST

The clock of the service runs SPEED times as fast, so that leases run out within seconds. Each process appends
what it was told to FOLDER/NAME.jsonl. A request that the database refuses is repeated, as clients and workers
do. The processes are forks, because the imports of many would take a minute on a busy machine.
"""

import datetime
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from service_class import document
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from hvdgrade.service import database, intake, queue
from hvdgrade.service.models import Assignment, Grading, Member, Person, Submission, Worker

BEGAN = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC)


def main() -> None:
    """Start processes until the standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that an ended process disappears
    for line in sys.stdin:
        if (number := os.fork()) == 0:
            code = 1
            try:
                play(*json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(number, flush=True)


def play(what: str, url: str, name: str, folder: str, speed: float, *rest: float) -> None:
    """Do what a line says."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    queue.MOST_TRIES = 1000  # kills must lose nothing, however often they meet one grading
    process = Process(url, Path(folder) / f"{name}.jsonl", speed, name)
    if what == "grade":
        process.grade_all()
    else:
        process.submit_all(*rest)


class Process:
    """One process with its own engine and log."""

    def __init__(self, url: str, log: Path, speed: float, name: str) -> None:
        self.engine, self.speed, self.name = database.connect(url), speed, name
        self.log = open(log, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def now(self) -> datetime.datetime:
        """Return the moment of the fast clock, which is the same in all processes."""
        began = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
        return BEGAN + datetime.timedelta(seconds=(time.time() - began) * self.speed)

    def ask(self, request: Callable[[Session], Any]) -> Any:
        """Do a request in a transaction, again after an error of the database."""
        while True:
            try:
                with database.transaction(self.engine) as session:
                    return request(session)
            except DBAPIError:
                time.sleep(0.1)

    def write(self, *what: Any) -> None:
        self.log.write(json.dumps(what) + "\n")

    def grade_all(self) -> None:
        """Grade until the submitter is ready and nothing is open."""
        folder = Path(self.log.name).parent
        while True:
            ended = (folder / "submitted").exists()
            lease = self.ask(self.claim)
            if lease:
                self.grade(lease)
            elif ended and not self.ask(lambda session: session.scalar(open_gradings())):
                return
            else:
                time.sleep(0.02)

    def claim(self, session: Session) -> queue.Lease | None:
        queue.expire(session, self.now())
        worker = session.scalar(select(Worker).where(Worker.name == self.name))
        return queue.claim(session, worker, self.now())

    def grade(self, lease: queue.Lease) -> None:
        """Give a score that follows from the script, so that a result of another one would show."""
        self.write("claimed", lease.grading)
        for _ in range(3):
            time.sleep(random.uniform(0, 0.02))
            if not self.ask(
                lambda s: queue.beat(s, lease.grading, lease.token, "epoch", self.now())
            ):
                return
        result = document(lease.script, score_of(lease.script))
        if self.ask(
            lambda s: queue.finish(s, lease.grading, lease.token, result, self.name, self.now())
        ):
            self.write("finished", lease.grading, lease.submission)

    def submit_all(self, first: int, last: int, seconds: float) -> None:
        """Hand in the scripts FIRST to LAST within so many seconds, several at the same time."""
        with ThreadPoolExecutor(8) as pool:
            for waited in pool.map(lambda n: self.submit(n, seconds), range(first, last)):
                self.write("submitted", waited)
        (Path(self.log.name).parent / "submitted").touch()

    def submit(self, number: int, seconds: float) -> float:
        time.sleep(random.uniform(0, seconds / 10))
        began = time.monotonic()
        script = b"print(%d)" % number

        def request(session: Session) -> bool:
            assignment = session.scalars(select(Assignment)).one()
            people = session.scalar(select(func.count()).select_from(Member))
            person = session.get(Person, number // 2 % people + 1)
            return intake.submit(
                session, assignment, person, "page", f"key {number}", script, self.now()
            ).created

        self.ask(request)
        return time.monotonic() - began


def score_of(script: bytes) -> float:
    """Return the points that a script gets."""
    return int(hashlib.sha256(script).hexdigest()[:6], 16) % 1001 / 10


def open_gradings():
    """Return the query for the number of gradings that wait or run."""
    return select(func.count(Grading.id)).where(Grading.state.in_(("queued", "leased")))


def lost_twice_or_crossed(session: Session) -> dict[str, list]:
    """Return the submissions that have no result, several results, or the result of another script."""
    wrong: dict[str, list] = {"lost": [], "twice": [], "crossed": []}
    for one in session.scalars(select(Submission)):
        rows = session.scalars(select(Grading).filter_by(submission_id=one.id)).all()
        done = [row for row in rows if row.state == "done"]
        if not done and not one.replaced_by:
            wrong["lost"].append(one.id)
        if len(rows) > 1 or (rows and one.replaced_by):
            wrong["twice"].append(one.id)
        if any(row.score != score_of(one.script) for row in done):
            wrong["crossed"].append(one.id)
    return wrong


if __name__ == "__main__":
    main()
