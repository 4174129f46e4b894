"""What keeps open pages current: a stream that says only "changed". A page then fetches itself again."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hvdgrade.service import access, server
from hvdgrade.service.access import Caller
from hvdgrade.service.rendering import page
from hvdgrade.service.server import Reader, Server

QUEUE_SECONDS = (
    10.0,
    20.0,
)  # between two messages about changes of the queue: the least and the most


class Events(StreamingResponse):
    """Server-sent events, of which a person has a limited number of streams."""

    def __init__(self, hold: AbstractContextManager[None], *args: Any, **words: Any):
        super().__init__(*args, **words)
        self.hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the browser goes."""
        with self.hold:
            await super().__call__(scope, receive, send)


@page
async def events(request: Request, caller: Caller) -> Response:
    """GET /events: a message "changed" after each change that the caller may see."""
    service = server.of(request)
    watched = await service.read(_watched, caller)
    return Events(
        service.streams.one(caller.person_id),
        changes(service, server.Reader(watched)),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


def _watched(session: Session, caller: Caller) -> dict[int | str, int | None]:
    rows = access.assignments(session, caller)
    return {one.id: None if role in access.STAFF else caller.person_id for one, _, role in rows}


async def changes(service: Server, reader: Reader) -> AsyncIterator[bytes]:
    """Yield a message of server-sent events after each change, at most one per second.

    What changes for everybody comes later, and at another time for each reader: otherwise a class that
    watches its places in the queue would fetch a page per person and second.
    """
    service.readers.add(reader)
    try:
        yield b"retry: 3000\n\n"
        while not service.closing:
            try:
                await asyncio.wait_for(reader.changed.wait(), random.uniform(*QUEUE_SECONDS))
            except TimeoutError:
                if not reader.moved:
                    yield b": still here\n\n"
                    continue
            reader.changed.clear()
            reader.moved = False
            yield b"data: changed\n\n"
            await asyncio.sleep(1)
    finally:
        service.readers.discard(reader)


ROUTES = [Route("/events", events)]
