"""What each route uses: settings, transactions in threads, limited bodies, and news for open pages."""

import asyncio
import datetime
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request

from hvdgrade.service import access, database
from hvdgrade.service.access import Caller
from hvdgrade.service.limits import Buckets, Held

P, T = ParamSpec("P"), TypeVar("T")
# What has changed: an assignment (its id) or the queue of a pool (its name), and for whom; None: for all.
News = tuple[int | str, int | None]
FORM_BYTES = 100_000


@dataclass(frozen=True)
class Settings:
    """Settings of a server."""

    address: str = "http://127.0.0.1:8790"  # for browsers; its path is the prefix of every route
    claim_s: float = 25.0  # for which a claim of a worker waits
    staff_pages: bool = True  # not where pages of learners have the same origin
    proofs: Sequence[Callable[[Engine, str], Caller | None]] = ()  # for tokens of other issuers
    login: str = (
        ""  # path at which a browser signs in by another server; "" where only links sign in
    )

    @property
    def prefix(self) -> str:
        """Return the path before every route, for example "/services/grade"; "" if there is none."""
        return urlsplit(self.address).path.rstrip("/")

    @property
    def https(self) -> bool:
        """Return whether browsers use an encrypted connection."""
        return self.address.startswith("https:")


@dataclass
class Server:
    """The state of one process. Nothing in it must survive a restart."""

    engine: Engine
    settings: Settings
    failures: Buckets = field(default_factory=Buckets)
    streams: Held = field(
        default_factory=lambda: Held(3, "You have this service open in more than three tabs.")
    )
    uploads: Held = field(default_factory=lambda: Held(10, "Wait until your other uploads end."))
    readers: set["Reader"] = field(default_factory=set)
    closing: bool = False

    def close(self) -> None:
        """Let go those who wait, because the process is about to end."""
        self.closing = True
        for reader in self.readers:
            reader.changed.set()

    def tell(self, news: set[News]) -> None:
        """Wake those who wait for one of these changes."""
        for reader in self.readers:
            reader.hear(news)

    async def work(
        self, function: Callable[Concatenate[Session, P], T], *args: P.args, **words: P.kwargs
    ) -> T:
        """Run a function with a session as its first argument in a thread, in one transaction."""

        def run() -> tuple[T, set[News]]:
            with database.transaction(self.engine) as session:
                return function(session, *args, **words), session.info.get("news", set())

        result, news = await run_in_threadpool(run)
        self.tell(news)
        return result

    async def read(
        self, function: Callable[Concatenate[Session, P], T], *args: P.args, **words: P.kwargs
    ) -> T:
        """Run a function that only reads, in a thread."""

        def run() -> T:
            with database.reading(self.engine) as session:
                return function(session, *args, **words)

        return await run_in_threadpool(run)


@dataclass(eq=False)
class Reader:
    """Somebody who waits for changes of these subjects: those of one person, or of everybody (None).

    Attributes:
        changed: set by a change that concerns the reader.
        moved: whether something changed for everybody, such as the places in the queue.
    """

    watches: Mapping[int | str, int | None]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    moved: bool = False

    def hear(self, news: set[News]) -> None:
        """Note what of these changes concerns this reader."""
        for subject, person in news:
            if subject in self.watches and self.watches[subject] in (None, person):
                self.changed.set()
            elif subject in self.watches and person is None:
                self.moved = True


def of(request: Request) -> Server:
    """Return the server that got a request."""
    return request.app.state.server


def now() -> datetime.datetime:
    """Return the time by the server's clock."""
    return datetime.datetime.now(datetime.UTC)


def note(session: Session, subject: int | str, person: int | None = None) -> None:
    """Note a change, of which readers hear after the commit."""
    session.info.setdefault("news", set()).add((subject, person))


async def body(request: Request, most: int, what: str) -> bytes:
    """Return the body of a request of at most `most` bytes. Reading stops beyond, and the answer is 413."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise HTTPException(413, f"{what} may have at most {most // 1000} kB.")
    return bytes(data)


async def form(request: Request, most: int = FORM_BYTES) -> FormData:
    """Return the fields and the file of a form of at most `most` bytes, or answer 413."""
    data = await body(request, most, "A form")

    async def again() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    # "on" of 500 check boxes and one file
    return await Request(request.scope, again).form(
        max_files=1, max_fields=1000, max_part_size=most
    )


async def caller(request: Request) -> Caller:
    """Return who sends a request: by its bearer token, else by the cookie of its browser.

    A token that is not valid gets 401, and after too many of them 429.
    """
    server, secret = of(request), access.bearer(request)
    cookie = request.cookies.get(access.COOKIE, "")
    if not secret and not cookie:
        return access.NOBODY
    kinds = {"person", "door", "worker"} if secret else {"session"}
    found = await server.read(access.known, secret or cookie, kinds, now())
    for proof in server.settings.proofs if secret else ():
        found = found or await run_in_threadpool(proof, server.engine, secret)
    if found is None and secret:
        count_failure(request)
        raise HTTPException(401, "This token is unknown, revoked or too old.")
    return found or access.NOBODY


def count_failure(request: Request) -> None:
    """Count that an address could not prove who it is. If it failed too often, answer 429."""
    failures, client = of(request).failures, address(request)
    if seconds := failures.wait(client):
        sentence = "Too many attempts from this address failed. Wait and try again."
        raise HTTPException(429, sentence, {"Retry-After": str(seconds)})
    failures.failed(client)


def address(request: Request) -> str:
    """Return the address of the client."""
    return request.client.host if request.client else ""


def clean(text: str) -> str:
    """Return text that every database can keep: without NUL and without halves of a character."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def free_disk(engine: Engine) -> float:
    """Return which fraction of the disk of an SQLite file is free; 1 for another database."""
    if engine.dialect.name != "sqlite":
        return 1.0
    disk = shutil.disk_usage(Path(engine.url.database or ".").absolute().parent)
    return disk.free / disk.total
