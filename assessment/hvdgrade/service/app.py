"""The application of the service: its routes, what it answers to errors, and the headers of every page.

    application(engine, Settings(address="https://grade.example.edu"))

uvicorn runs it. Work with the database happens in threads, in one transaction a request.
"""

import asyncio
import contextlib
import errno
import logging
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hvdgrade.result_document import NotAResult
from hvdgrade.service import (
    api,
    board,
    claims,
    intake,
    live,
    pages,
    queue,
    rendering,
    server,
    staff,
)
from hvdgrade.service.access import NOT_FOUND
from hvdgrade.service.models import Event, Grading
from hvdgrade.service.server import Server, Settings

log = logging.getLogger("hvdgrade.service")
EXPIRE_S = 5.0
# The last: two requests added the same row at the same moment.
PASSING = (OperationalError, InterfaceError, NoConnection, IntegrityError)
AWAY = "The database cannot be reached at the moment. Send the request again."
NOT_ALLOWED = "This address does not take such a request."
FULL = "The disk of the server is full. Nothing was stored; send the request again later."
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def application(engine: Engine, settings: Settings, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application on a database with current tables. Further `routes` are those of a login."""
    static = StaticFiles(directory=Path(__file__).with_name("static"))
    every: list[BaseRoute] = [
        *api.ROUTES,
        *claims.ROUTES,
        *pages.ROUTES,
        *board.ROUTES,
        *live.ROUTES,
        *routes,
    ]
    every += staff.ROUTES if settings.staff_pages else []
    every.append(Mount("/static", static))
    made = Starlette(
        routes=[Mount(settings.prefix, routes=every)] if settings.prefix else every,
        middleware=[Middleware(Headers)],
        exception_handlers={
            HTTPException: refuse,
            intake.Refused: refuse,
            NotAResult: refuse,
            DBAPIError: refuse_for_database,
            NoConnection: refuse_for_database,
            OSError: refuse_for_database,
            ClientDisconnect: forget,
            Exception: fail,
        },
        lifespan=_lifespan,
    )
    made.state.server = Server(engine, settings)
    return made


class Headers:
    """Add the security headers to each answer, and write one line a request, without its query."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if (
                    message["status"] != 204
                ):  # of a claim that found nothing, twice a minute a worker
                    log.info("%s %s %s", scope["method"], scope["path"], message["status"])
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)


# --- errors -----------------------------------------------------------------------------------------


def answer(
    request: Request, status: int, sentence: str, headers: dict[str, str] | None = None
) -> Response:
    """Return an error: JSON for a program, a page for a browser."""
    sentence = sentence[:1].upper() + sentence[1:]
    path = request.url.path.removeprefix(server.of(request).settings.prefix)
    if path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"error": sentence}, status, headers)
    return rendering.problem(request, status, sentence, headers)


async def refuse(request: Request, error: Exception) -> Response:
    """Answer an error that a route raised."""
    plainly = {"Not Found": NOT_FOUND, "Method Not Allowed": NOT_ALLOWED}
    match error:
        case HTTPException():
            sentence = plainly.get(error.detail, error.detail)
            return answer(request, error.status_code, sentence, dict(error.headers or {}))
        case intake.Refused():
            wait = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
            return answer(request, error.status, str(error), wait)
    return answer(request, 422, str(error))  # a worker's document is not the result of its grading


async def refuse_for_database(request: Request, error: Exception) -> Response:
    """Answer an error of the database or of the disk: the disk is full, or the database cannot be reached."""
    if any(map(_is_full_disk, _with_earlier(error))):
        return answer(request, 507, FULL)
    if isinstance(error, PASSING) or getattr(error, "connection_invalidated", False):
        cause = getattr(error, "orig", None)
        log.warning("database: %s", " ".join(str(cause or error).split())[:300])
        return answer(request, 503, AWAY, {"Retry-After": "5"})
    return await fail(request, error)


def _with_earlier(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those before it: SQLite ends the transaction when its disk is full, so that the
    end of a savepoint then fails as well."""
    while error is not None:
        yield error
        error = error.__context__


def _is_full_disk(error: BaseException) -> bool:
    cause = getattr(error, "orig", None)
    of_database = getattr(cause, "sqlstate", None) == "53100" or "disk is full" in str(cause)
    return of_database or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


async def fail(request: Request, error: Exception) -> Response:
    """Answer an error that is our own."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer(request, 500, "The server made a mistake, which its log describes.")


async def forget(request: Request, error: Exception) -> Response:
    """Answer nobody: the client has gone."""
    return Response(status_code=400)


# --- what happens without a request -----------------------------------------------------------------


@contextlib.asynccontextmanager
async def _lifespan(made: Starlette) -> AsyncIterator[None]:
    task = asyncio.create_task(_look_after(made.state.server))
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _look_after(service: Server) -> None:
    """Take back leases that ran out, and notice what commands and other servers have changed."""
    before, heard = None, -math.inf
    while True:
        try:
            await service.work(_expire, heard)
            heard = time.monotonic()
            newest = await service.read(_newest)
            if before is not None and newest != before:
                everything = {key for reader in service.readers for key in reader.watches}
                service.tell({(key, None) for key in everything})
            before = newest
        except (DBAPIError, NoConnection, OSError) as error:
            log.warning("database: %s", " ".join(str(error).split())[:300])
        await asyncio.sleep(EXPIRE_S)


def _expire(session: Session, heard: float) -> None:
    # Beats were lost before this server started, or while it could not reach the database.
    if time.monotonic() - heard > queue.LEASE_SECONDS / 2:
        queue.extend_all(session, server.now())
    if taken := queue.expire(session, server.now()):
        log.warning("%d leases ran out", taken)


def _newest(session: Session) -> tuple:
    """Return numbers that differ after each change that matters to an open page."""
    newest = (Grading.id, Grading.started, Grading.finished)
    return tuple(session.execute(select(*map(func.max, newest))).one()) + (
        session.scalar(select(func.max(Event.id))),
    )
