"""A running server of the service for tests: uvicorn on a free port, a class, and clients for each role."""

import contextlib
import copy
import datetime
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from hvdgrade.service import access, database
from hvdgrade.service.app import application
from hvdgrade.service.models import Assignment, Course, Grading, Member, Person
from hvdgrade.service.server import Settings, now

RESULTS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in (Path(__file__).parents[1] / "fixtures" / "results").glob("*.json")
}
# Name -> role in the course "dl". The last one is instructor of another course, and nothing here.
PEOPLE = {
    "ada": "learner",
    "bob": "learner",
    "tom": "ta",
    "ines": "instructor",
    "oscar": None,
}
# For a test whose routes lock rows, compare moments or store JSON, which the two databases do differently.
ON_BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
FROM_OUR_PAGE = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Dest": "document"}


class Site:
    """What the tests of pages and of the API talk to."""

    def __init__(self, engine: Engine, url: str, app: Any) -> None:
        self.engine, self.url, self.app = engine, url, app
        self.keys = itertools.count()
        self.ids: dict[str, int] = {}
        self.tokens: dict[str, str] = {}
        self.secrets: dict[str, str] = {}
        self.open_clients: list[httpx.Client] = []
        with self.transaction() as session:
            if session.scalar(select(Course)) is None:
                self._people(session)

    def _people(self, session: Session) -> None:
        here = Course(slug="dl", title="Deep learning")
        other = Course(slug="other", title="Another course")
        session.add_all([here, other])
        session.flush()
        cifar = Assignment(slug="cifar", course_id=here.id, title="CIFAR-10")
        foreign = Assignment(slug="foreign", course_id=other.id, pool="elsewhere")
        session.add_all([cifar, foreign])
        for name, role in PEOPLE.items():
            person = Person(name=name.capitalize(), email=f"{name}@example.edu")
            session.add(person)
            session.flush()
            course = other if role is None else here
            member = Member(course_id=course.id, person_id=person.id, role=role or "instructor")
            session.add(member)
            self.ids[name] = person.id
            self.tokens[name] = access.new_token(session, "person", person.id, now())
            self.secrets[name] = access.new_session(session, person.id, now())
        for door, where in (("gradescope", cifar), ("prairielearn", cifar), ("away", foreign)):
            about = {"assignment_id": where.id, "door": door}
            self.tokens[door] = access.new_token(session, "door", None, now(), **about)
        self.tokens["worker"] = access.new_token(session, "worker", None, now(), pool="default")

    def transaction(self) -> contextlib.AbstractContextManager[Session]:
        return database.transaction(self.engine)

    def change(self, slug: str = "cifar", **values: Any) -> None:
        """Set columns of an assignment."""
        with self.transaction() as session:
            assignment = session.scalar(select(Assignment).filter_by(slug=slug))
            for name, value in values.items():
                setattr(assignment, name, value)

    # --- programs

    def client(self, who: str | None = None, **headers: str) -> httpx.Client:
        """Return a client with the token of a person, of a door or of the worker."""
        if who:
            headers["Authorization"] = f"Bearer {self.tokens[who]}"
        made = httpx.Client(base_url=self.url, headers=headers, timeout=60)
        self.open_clients.append(made)
        return made

    def submit(
        self, who: str = "ada", script: bytes | None = None, key: str | None = None, **headers: str
    ) -> httpx.Response:
        """Hand in as a program."""
        number = next(self.keys)
        headers["Idempotency-Key"] = f"key {number}" if key is None else key
        script = script or f"import horovod.torch as hvd\nprint({number})\n".encode()
        slug = headers.pop("slug", "cifar")
        path = f"/api/a/{slug}/submissions"
        return self.client(who).post(path, content=script, headers=headers)

    def status(self, id: str, who: str = "ada") -> dict[str, Any]:
        return self.client(who).get(f"/api/submissions/{id}").json()

    def claim(self, **about: Any) -> httpx.Response:
        asked = {
            "name": "w",
            "tier": "bubblewrap",
            "rules": {"cpu": "a" * 64},
            "slots_free": 1,
        } | about
        return self.client("worker").post("/api/claim", json=asked)

    def about(self, lease: dict, what: str, **asked: Any) -> httpx.Response:
        """Send a beat, a result or a lease back."""
        path = f"/api/gradings/{lease['grading']}/{what}"
        text = json.dumps({"token": lease["token"]} | asked)
        return self.client("worker").post(path, content=text)

    def result(self, lease: dict, name: str = "pass", **changes: Any) -> httpx.Response:
        document = copy.deepcopy(RESULTS[name]) | changes
        document["submission"]["sha256"] = None
        return self.about(lease, "result", document=document, log="the log")

    def graded(self, who: str = "ada", name: str = "pass", script: bytes | None = None) -> str:
        """Hand in, grade, and return the id of the submission."""
        id = self.submit(who, script).json()["id"]
        lease = self.claim().json()
        assert lease["submission"] == id
        assert self.result(lease, name).status_code == 200
        return id

    # --- browsers

    def browser(self, who: str, **headers: str) -> httpx.Client:
        """Return a client with the session of a person, which sends what a browser sends."""
        made = self.client(None, Accept="text/html", **(FROM_OUR_PAGE | headers))
        made.cookies.set(access.COOKIE, self.secrets[who])
        return made

    def csrf(self, who: str) -> str:
        with self.transaction() as session:
            return access.known(session, self.secrets[who], {"session"}, now()).csrf

    def post(self, who: str, path: str, **fields: Any) -> httpx.Response:
        """Send a form of a page."""
        return self.browser(who).post(path, data={"csrf": self.csrf(who)} | fields)

    def scalar(self, query: Any) -> Any:
        with self.transaction() as session:
            return session.scalar(query)

    def gradings(self, id: str) -> list[tuple[str, str]]:
        """Return reason and state of the gradings of a submission."""
        with self.transaction() as session:
            rows = select(Grading.reason, Grading.state).filter_by(submission_id=id)
            return [tuple(row) for row in session.execute(rows.order_by(Grading.id))]


@contextlib.contextmanager
def running(engine: Engine, port: int = 0, **settings: Any) -> Iterator[Site]:
    """Run the server in a thread until the block ends. The first one on a database makes the class."""
    config = {"port": port, "log_config": None, "access_log": False, "timeout_graceful_shutdown": 2}
    app = application(engine, Settings(**({"claim_s": 0.3} | settings)))
    server = uvicorn.Server(uvicorn.Config(app, **config))
    started = threading.Event()
    startup = server.startup

    async def and_tell(*args: Any, **words: Any) -> None:
        await startup(*args, **words)
        started.set()

    server.startup = and_tell
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(60)
        port = server.servers[0].sockets[0].getsockname()[1]
        site = Site(engine, f"http://127.0.0.1:{port}", app)
        yield site
        for client in site.open_clients:
            client.close()
    finally:
        server.should_exit = True
        thread.join(30)
        engine.dispose()
    assert not thread.is_alive()


def ago(**time: float) -> datetime.datetime:
    return now() - datetime.timedelta(**time)
