"""What workers ask over HTTP: they claim gradings, keep their leases, and give results."""

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hvdgrade.result_document import read
from hvdgrade.service import queue, server
from hvdgrade.service.access import Caller
from hvdgrade.service.models import QUEUED, Grading, Worker
from hvdgrade.service.server import clean

DOCUMENT_BYTES = 256_000
CLAIM_BYTES, BEAT_BYTES = 16_000, 32_000  # of a request
RESULT_BYTES = 800_000  # the document, and the log as JSON
LOST = "Another worker has this grading, or it has ended: end the run."


async def claim(request: Request) -> Response:
    """POST /api/claim: wait for a grading of the worker's pool."""
    caller, asked = await _worker(request), await _json(request, CLAIM_BYTES)
    service = server.of(request)
    reader, end = server.Reader({caller.pool: None}), time.monotonic() + service.settings.claim_s
    service.readers.add(reader)
    try:
        while not service.closing and not await request.is_disconnected():
            reader.changed.clear()
            lease, refused = await service.work(_claim, caller, asked)
            if refused:
                return JSONResponse({"error": refused, "refused": refused}, 409)
            if lease:
                return JSONResponse(lease)
            left = end - time.monotonic()
            if left <= 0:
                break
            try:  # another process of the server may have queued something
                await asyncio.wait_for(reader.changed.wait(), min(left, 2.0))
            except TimeoutError:
                pass
    finally:
        service.readers.discard(reader)
    return Response(status_code=204)


def _claim(session: Session, caller: Caller, asked: dict[str, Any]) -> tuple[dict | None, str]:
    worker, at = _seen(session, caller, asked), server.now()
    if asked.get("pool") not in (None, "", caller.pool):
        wanted = clean(str(asked["pool"]))[:200]
        worker.refused = f"Its token is for the pool {caller.pool}, and it asked for {wanted}."
        return None, worker.refused
    lease = queue.claim(session, worker, at)
    if lease is None:
        return None, worker.refused
    _note(session, lease.grading)
    return asdict(lease) | {"script": base64.b64encode(lease.script).decode()}, ""


def _seen(session: Session, caller: Caller, asked: dict[str, Any]) -> Worker:
    """Return the row of a worker, with what it says of itself."""

    def text(name: str) -> str:
        return clean(str(asked.get(name) or ""))[:200]

    def number(name: str) -> int:
        value = asked.get(name)
        return value if type(value) is int and 0 <= value < 10_000 else 0

    name, rules = text("name") or "worker", asked.get("rules")
    worker = session.scalar(
        select(Worker).where(Worker.token_id == caller.token_id, Worker.name == name)
    )
    if worker is None:
        worker = Worker(token_id=caller.token_id, name=name, pool=caller.pool, seen=server.now())
        session.add(worker)
    named = rules.items() if isinstance(rules, dict) else ()
    worker.rules = {name: sha256 for name, sha256 in named if isinstance(sha256, str)}
    worker.version, worker.hardware, worker.tier = map(text, ("version", "hardware", "tier"))
    worker.slots, worker.gpus = max(1, number("slots") or worker.slots or 1), number("gpus")
    worker.seen = server.now()
    session.flush()
    return worker


async def beat(request: Request) -> Response:
    """POST /api/gradings/{id}/beat: keep the lease, and show the progress."""
    asked = await _asked(request, BEAT_BYTES)
    return await _change(request, asked, queue.beat, clean(str(asked.get("progress") or "")))


async def result(request: Request) -> Response:
    """POST /api/gradings/{id}/result: take the result document of a grading."""
    asked = await _asked(request, RESULT_BYTES)
    document = json.dumps(asked.get("document"))
    if len(document) > DOCUMENT_BYTES:
        raise HTTPException(413, f"A document may have at most {DOCUMENT_BYTES // 1000} kB.")
    log = clean(str(asked.get("log") or ""))
    return await _change(request, asked, queue.finish, read(document), log)


async def give_back(request: Request) -> Response:
    """POST /api/gradings/{id}/back: put a grading that the worker does not finish back into the queue."""
    asked = await _asked(request, CLAIM_BYTES)
    why, ends = clean(str(asked.get("why") or "")), asked.get("worker_ends") is True
    return await _change(request, asked, queue.give_back, why, ends)


async def _change(
    request: Request, asked: dict[str, Any], change: Callable[..., bool], *values: Any
) -> Response:
    """Change a leased grading, and tell open pages; answer 409 to a worker that does not hold the lease."""
    id, token = request.path_params["id"], str(asked.get("token") or "")

    def work(session: Session) -> bool:
        if not change(session, id, token, *values, server.now()):
            return False
        _note(session, id, only_its_author=change is queue.beat)
        return True

    if not await server.of(request).work(work):
        raise HTTPException(409, LOST)
    return JSONResponse({"lease_s": queue.LEASE_SECONDS})


def _note(session: Session, id: int, only_its_author: bool = False) -> None:
    """Note that a grading has changed. A beat changes nobody else's place in the queue."""
    grading = session.get_one(Grading, id)
    submission = grading.submission
    server.note(session, submission.assignment_id, submission.person_id)
    if not only_its_author:
        server.note(session, submission.assignment_id)
    if grading.state == QUEUED:
        server.note(session, grading.pool)


async def _worker(request: Request) -> Caller:
    caller = await server.caller(request)
    if caller.kind != "worker":
        raise HTTPException(401, "Send the token of a worker in the header Authorization.")
    return caller


async def _asked(request: Request, most: int) -> dict[str, Any]:
    await _worker(request)
    return await _json(request, most)


async def _json(request: Request, most: int) -> dict[str, Any]:
    """Return the JSON object that a request holds. NaN and infinity become null: no database keeps them."""
    data = await server.body(request, most, "This request")
    try:
        value = json.loads(data, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise HTTPException(400, "The body must be a JSON object.")
    return value


ROUTES = [
    Route("/api/claim", claim, methods=["POST"]),
    Route("/api/gradings/{id:int}/beat", beat, methods=["POST"]),
    Route("/api/gradings/{id:int}/result", result, methods=["POST"]),
    Route("/api/gradings/{id:int}/back", give_back, methods=["POST"]),
]
