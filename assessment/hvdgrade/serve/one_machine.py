"""Everything on one machine: a course to try, links that sign in, and a worker as a process of its own."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from hvdgrade.service import access, database, people, server
from hvdgrade.service.models import INSTRUCTOR, LEARNER, Assignment, Course, Member, Token

POOL, DOOR = "default", "this machine"
AGAIN_S = 10.0  # before a worker that ended starts again
END_S = 30.0  # for a worker to end its gradings
STEPS = """\
  You, as instructor:  {instructor}
  A test learner:      {learner}
Each link works once, and only on this machine. Open the second one in a private window, because a browser is
signed in as one person. The data lie in runs/service."""


def first_steps(engine: Engine, address: str) -> str:
    """Make a course with one assignment if there is none, and return the text with two links."""
    with database.transaction(engine) as session:
        course = session.scalar(select(Course).order_by(Course.id))
        if course is None:
            course = Course(slug="lab", title="Training on many processes")
            session.add(course)
            session.flush()
            # No rules are pinned, so that a newer version of the grader still grades it.
            assignment = Assignment(course_id=course.id, slug="assessment", title="Assessment")
            session.add(assignment)
        links = {
            role: f"{address}/login?token={_link(session, course, role)}"
            for role in (INSTRUCTOR, LEARNER)
        }
    return STEPS.format(**links)


def _link(session: Session, course: Course, role: str) -> str:
    """Return a link's token for the local person who has this role."""
    name = {INSTRUCTOR: "Instructor", LEARNER: "Test learner"}[role]
    person = people.find_or_add(session, [("local", role)], name)
    session.merge(Member(course_id=course.id, person_id=person, role=role))
    old = update(Token).where(Token.kind == "link", Token.person_id == person)
    session.execute(old.where(Token.revoked.is_(None)).values(revoked=server.now()))
    return access.new_token(session, "link", person, server.now())


@contextlib.contextmanager
def worker(engine: Engine, address: str, folder: Path) -> Iterator[None]:
    """Run a worker of the pool "default" next to the server, and end it at the end."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with database.transaction(engine) as session:
        mine = update(Token).where(Token.kind == "worker", Token.door == DOOR)
        session.execute(mine.where(Token.revoked.is_(None)).values(revoked=server.now()))
        secret = access.new_token(session, "worker", None, server.now(), pool=POOL, door=DOOR)
    token = folder / "worker.token"
    token.unlink(missing_ok=True)
    with open(token, "x", encoding="ascii", opener=_private) as file:
        file.write(secret)
    python = [sys.executable, "-m"]
    command = [
        *python, "hvdgrade.batch.die_with_parent", str(os.getpid()), "-",
        *python, "hvdgrade.cli", "worker", "--server", address, "--token-file", str(token),
        "--spool", str(folder / "worker"),
    ]  # fmt: skip
    running = _Running(command, folder / "worker.log")
    try:
        yield
    finally:
        running.end()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Running:
    """A command that starts again when it ends by itself."""

    def __init__(self, command: list[str], log: Path):
        self.command, self.log = command, log
        self.ends = threading.Event()
        self.process = self._started()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _started(self) -> subprocess.Popen:
        # A session of its own: Ctrl-C reaches the server, which then ends the worker.
        about = {
            "stdin": subprocess.DEVNULL,
            "stderr": subprocess.STDOUT,
            "start_new_session": True,
        }
        with open(self.log, "ab") as output:
            return subprocess.Popen(self.command, stdout=output, **about)

    def _follow(self) -> None:
        while True:
            code = self.process.wait()
            if self.ends.is_set():
                return
            last = self.log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
            again = f"The worker ended with code {code} and starts again: {last} (see {self.log})"
            print(again, file=sys.stderr)
            if self.ends.wait(AGAIN_S):
                return
            self.process = self._started()

    def end(self) -> None:
        """End the command and what it started."""
        self.ends.set()
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.thread.join(END_S)
