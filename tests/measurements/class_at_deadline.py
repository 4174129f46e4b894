"""Let a class hand in at its deadline over HTTP while workers and the server are killed. Print the result.

    python -m tests.measurements.class_at_deadline FOLDER [--database postgresql] [--people 500] ...

The server is `hvdgrade serve` as a process of its own, on SQLite or on a PostgreSQL server in FOLDER. The
gradings are simulated: a worker sleeps, and sends the result of a real grading from tests/fixtures. Watchers
have the page of the assignment open, and fetch it again when the server says that something has changed. A
killed worker forgets its grading; the server is killed by kill -9 and started again, and PostgreSQL is
stopped at once, as by a power failure. At the end each submission that no newer one replaced must have
exactly one result, and none may have been graded while another waited that comes before it in the order of
the queue. It is not a test, and pytest does not run it.
"""

import argparse
import asyncio
import base64
import contextlib
import copy
import random
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path

import httpx
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from hvdgrade import profiles
from hvdgrade.service import access, database
from hvdgrade.service.models import Assignment, Course, Grading, Member, Person, Submission
from hvdgrade.service.server import now
from tests.helpers import postgres_server
from tests.helpers.service_site import FROM_OUR_PAGE, RESULTS

SLUG, BEAT_S, AGAIN_S, MOMENT = "cifar", 15.0, 0.5, timedelta(seconds=1)


class Deadline:
    """The class, its server, and what was measured."""

    def __init__(
        self,
        url: str,
        folder: Path,
        args: argparse.Namespace,
        postgres: postgres_server.Server | None,
    ) -> None:
        self.database, self.folder, self.args, self.postgres = url, folder, args, postgres
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.rules = profiles.load("cpu").rules_sha256
        self.submits, self.pages, self.accepted, self.counts = [], [], Counter(), Counter()
        self.handed_in = 0

    def prepare(self) -> None:
        """Make the tables, the class and everybody's secret."""
        self.engine = database.connect(self.database)
        database.upgrade(self.engine)
        with database.transaction(self.engine) as session:
            course = Course(slug="dl")
            session.add(course)
            session.flush()
            session.add(Assignment(slug=SLUG, course_id=course.id, rules_sha256=self.rules))
            people = [Person(name=f"Person {number}") for number in range(self.args.people)]
            session.add_all(people)
            session.flush()
            session.add_all(Member(course_id=course.id, person_id=one.id) for one in people)
            self.tokens = [access.new_token(session, "person", one.id, now()) for one in people]
            self.sessions = [access.new_session(session, one.id, now()) for one in people]
            self.worker = access.new_token(session, "worker", None, now(), pool="default")

    def start(self) -> None:
        """Start the server."""
        command = [
            sys.executable,
            "-m",
            "hvdgrade.cli",
            "serve",
            "--database",
            self.database,
            "--no-worker",
        ]
        with open(self.folder / "server.log", "ab") as log:
            listen = ["--listen", self.url.removeprefix("http://")]
            self.server = subprocess.Popen([*command, *listen], stdout=log, stderr=log)

    async def asked(self, client: httpx.AsyncClient, *request, **words) -> httpx.Response:
        """Send a request until there is an answer that is not a fault of a server that restarts."""
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = await client.request(*request, **words)
                if answer.status_code < 500 and answer.status_code != 429:
                    return answer
                self.counts[f"answer {answer.status_code}"] += 1
            await asyncio.sleep(AGAIN_S)

    async def hand_in(self, client: httpx.AsyncClient, person: int, at: float) -> None:
        """Hand in once; the time is that of the request which was answered."""
        await asyncio.sleep(at)
        headers = {
            "Authorization": f"Bearer {self.tokens[person]}",
            "Idempotency-Key": secrets.token_hex(8),
        }
        script = f"print({person}, {at})\n".encode()
        began = []

        async def timed(request: httpx.Request) -> None:
            began[:] = [time.monotonic()]

        client.event_hooks = {"request": [timed]}
        path = f"{self.url}/api/a/{SLUG}/submissions"
        answer = await self.asked(client, "POST", path, content=script, headers=headers)
        assert answer.status_code in (200, 201), answer.text
        self.submits.append(time.monotonic() - began[0])
        self.handed_in += 1

    async def grade(self, client: httpx.AsyncClient, name: str) -> None:
        """Claim, pretend to grade, and send a result, again and again."""
        headers = {"Authorization": f"Bearer {self.worker}"}
        about = {"name": name, "tier": "bubblewrap", "rules": {"cpu": self.rules}, "slots_free": 1}
        while True:
            answer = await self.asked(
                client, "POST", f"{self.url}/api/claim", json=about, headers=headers
            )
            if answer.status_code != 200:
                continue
            lease = answer.json()
            left = random.uniform(0.5, 1.5) * self.args.grading_seconds
            path = f"{self.url}/api/gradings/{lease['grading']}"
            while left > 0:
                await asyncio.sleep(min(left, BEAT_S))
                left -= BEAT_S
                beat = {"token": lease["token"], "progress": "epoch 1"}
                await self.asked(client, "POST", f"{path}/beat", json=beat, headers=headers)
            document = copy.deepcopy(RESULTS["pass"])
            document["submission"]["sha256"] = None
            document["grader"]["rules_sha256"] = self.rules
            assert base64.b64decode(lease["script"]).startswith(b"print(")
            sent = {"token": lease["token"], "document": document, "log": ""}
            answer = await self.asked(client, "POST", f"{path}/result", json=sent, headers=headers)
            assert answer.status_code in (200, 409), answer.text
            self.accepted[lease["submission"]] += answer.status_code == 200

    async def watch(self, client: httpx.AsyncClient, person: int) -> None:
        """Keep the page of the assignment open."""
        client.cookies.set(access.COOKIE, self.sessions[person])
        client.headers.update({"Accept": "text/html", **FROM_OUR_PAGE})
        while True:
            with contextlib.suppress(httpx.TransportError):
                async with client.stream("GET", f"{self.url}/events", timeout=60) as events:
                    async for line in events.aiter_lines():
                        if line == "data: changed":
                            began = time.monotonic()
                            answer = await client.get(f"{self.url}/a/{SLUG}")
                            if answer.status_code == 200:
                                self.pages.append(time.monotonic() - began)
            await asyncio.sleep(AGAIN_S)

    async def kill_servers(self) -> None:
        for _ in range(self.args.server_kills):
            await asyncio.sleep(self.args.seconds / (self.args.server_kills + 1))
            self.server.kill()
            self.server.wait()
            self.start()

    async def stop_postgres(self) -> None:
        for _ in range(self.args.database_stops):
            await asyncio.sleep(self.args.seconds / (self.args.database_stops + 1))
            self.postgres.stop()
            self.postgres.start()  # in this thread, with which the kernel ends the server

    async def run(self) -> None:
        """Everything at once, until all that was handed in is graded."""
        args = self.args
        async with contextlib.AsyncExitStack() as stack:

            async def client() -> httpx.AsyncClient:
                return await stack.enter_async_context(httpx.AsyncClient(timeout=60))

            who = [
                *range(args.people),
                *(random.randrange(args.people) for _ in range(args.submissions)),
            ]
            times = [random.uniform(0, args.seconds) for _ in range(args.submissions)]
            writers = [self.hand_in(await client(), *one) for one in zip(who, times, strict=False)]
            workers = {
                f"worker {i}": asyncio.create_task(self.grade(await client(), f"worker {i}"))
                for i in range(args.slots)
            }
            watchers = [
                asyncio.create_task(self.watch(await client(), i)) for i in range(args.watchers)
            ]
            others = [*watchers, asyncio.create_task(self.kill_servers())]
            if self.postgres:
                others.append(asyncio.create_task(self.stop_postgres()))
            writing = asyncio.gather(*writers)
            for _ in range(args.worker_kills):
                await asyncio.sleep(args.seconds / (args.worker_kills + 1))
                name = random.choice(sorted(workers))
                workers[name].cancel()
                workers[name] = asyncio.create_task(self.grade(await client(), name))
            await writing
            while self.open_gradings():
                await asyncio.sleep(2)
            for task in (*others, *workers.values()):
                task.cancel()
            await asyncio.gather(*others, *workers.values(), return_exceptions=True)

    def open_gradings(self) -> int:
        waiting = select(func.count()).select_from(Grading)
        waiting = waiting.where(Grading.state.in_(("queued", "leased")))
        while True:
            with contextlib.suppress(OperationalError), database.reading(self.engine) as session:
                return session.scalar(waiting)
            time.sleep(AGAIN_S)  # the database restarts

    def report(self) -> list[str]:
        """Return the lines of the result."""
        with database.reading(self.engine) as session:
            done = Counter(
                session.scalars(select(Grading.submission_id).where(Grading.state == "done"))
            )
            stored = session.scalars(
                select(Submission.id).where(Submission.replaced_by.is_(None))
            ).all()
            every = session.scalar(select(func.count()).select_from(Submission))
            tries = session.scalar(select(func.sum(Grading.tries)).where(Grading.state == "done"))
            graded = session.execute(
                select(Grading, Submission)
                .join(Submission, Grading.submission_id == Submission.id)
                .where(Grading.state == "done")
            ).all()
            waits, late = first_waits(graded), out_of_order(graded)
        lost = sum(done[id] == 0 for id in stored) + self.handed_in - every
        twice = sum(count > 1 for count in done.values()) + sum(
            n > 1 for n in self.accepted.values()
        )
        return [
            f"{every} submissions of {self.args.people} people, {every - len(stored)} replaced in the queue",
            f"results {done.total()}, lost {lost}, twice {twice}, claimed again {tries - done.total()}",
            f"submit: {described(self.submits)}",
            f"page: {described(self.pages)}",
            f"wait for a person's first result: {described(waits)}",
            f"graded before another that came first: {late}",
            f"answers of a server that restarts: {dict(self.counts)}",
        ]


def first_waits(graded: list) -> list[float]:
    """Return for each person the seconds from the first submission with a result to that result."""
    waits = {}
    for grading, submission in sorted(graded, key=lambda pair: pair[0].finished):
        waits.setdefault(
            submission.person_id, (grading.finished - submission.received).total_seconds()
        )
    return [*waits.values()]


def out_of_order(graded: list) -> int:
    """Return how many gradings began while another waited for more than a second that comes before them.

    What happens within a second does not count, because transactions of one moment do not see each other.
    Nobody waits while another grading of the same person runs. People one of whose gradings lost its worker
    are left out, because the table keeps only the last start of a grading.
    """
    lost = {submission.person_id for grading, submission in graded if grading.tries > 1}
    kept = [pair for pair in graded if pair[1].person_id not in lost]
    runs = defaultdict(list)
    for grading, submission in kept:
        runs[submission.person_id].append((grading.started, grading.finished))
    return sum(
        any(
            (other.rank, other.id) < (grading.rank, grading.id)
            and other.queued + MOMENT < grading.started < other.started - MOMENT
            and not any(a <= grading.started <= b for a, b in runs[owner.person_id])
            for other, owner in kept
        )
        for grading, _ in kept
    )


def described(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=20)
    return f"n {len(seconds)}, median {cuts[9] * 1000:.0f} ms, p95 {cuts[18] * 1000:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="an empty folder")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--people", type=int, default=500)
    parser.add_argument("--submissions", type=int, default=900)
    parser.add_argument("--seconds", type=float, default=600.0, help="in which they hand in")
    parser.add_argument("--grading-seconds", type=float, default=20.0)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--watchers", type=int, default=100)
    parser.add_argument("--worker-kills", type=int, default=20)
    parser.add_argument("--server-kills", type=int, default=10)
    parser.add_argument("--database-stops", type=int, default=2, help="of PostgreSQL")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        url, server = f"sqlite:///{args.folder.resolve()}/service.db", None
        if args.database == "postgresql":
            place = args.folder.resolve() / "postgres"
            place.mkdir()
            server = stack.enter_context(postgres_server.running(place))
            url = server.database("service")
        deadline = Deadline(url, args.folder, args, server)
        deadline.prepare()
        deadline.start()
        stack.callback(lambda: (deadline.server.kill(), deadline.server.wait()))
        asyncio.run(deadline.run())
        print(f"{args.database}, gradings simulated", *deadline.report(), sep="\n")


if __name__ == "__main__":
    main()
