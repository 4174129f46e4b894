"""What front doors ask over HTTP: they hand in and read results. And what an admin asks of the server."""

from importlib import import_module
from typing import Any
from urllib.parse import unquote

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hvdgrade.export.payload_files import text
from hvdgrade.result_document import ResultDocument
from hvdgrade.service import access, intake, people, server
from hvdgrade.service.access import Caller
from hvdgrade.service.models import Assignment, Person
from hvdgrade.service.status import counts, current, described, shown_document

NO_TOKEN = "Send the token of a person or of a door in the header Authorization."
FORMATS = ("gradescope", "prairielearn", "classroom50", "junit")


async def submit(request: Request) -> Response:
    """POST /api/a/{slug}/submissions: take a script and answer with its status."""
    caller = await server.caller(request)
    if caller.kind not in ("person", "door"):
        raise HTTPException(401, NO_TOKEN)
    key = request.headers.get("idempotency-key", "")
    # Percent-encoded, because a header has no place for letters such as "é".
    who = unquote(request.headers.get("hvdgrade-learner", ""))
    name = unquote(request.headers.get("hvdgrade-learner-name", ""))
    service = server.of(request)
    with service.uploads.one((caller.token_id, caller.person_id, who)):
        script = await server.body(request, intake.MOST_BYTES, "A script")
    slug = request.path_params["slug"]
    created, answer = await service.work(_submit, caller, slug, key, who, name, script)
    return JSONResponse(answer, 201 if created else 200)


def _submit(
    session: Session, caller: Caller, slug: str, key: str, who: str, name: str, script: bytes
) -> tuple[bool, dict[str, Any]]:
    assignment = session.scalar(select(Assignment).where(Assignment.slug == slug))
    if assignment is None:
        raise HTTPException(404, "There is no such assignment.")
    person, door = _handed_in_by(session, caller, assignment, who, name)
    receipt = hand_in(session, assignment, person, door, key, script)
    answer = described(session, receipt.submission, staff=False, now=server.now())
    return receipt.created, answer


def _handed_in_by(
    session: Session, caller: Caller, assignment: Assignment, who: str, name: str
) -> tuple[Person, str]:
    """Return the person whose submission it is, and the name of the door."""
    if caller.kind == "door":
        if caller.assignment_id != assignment.id:
            raise HTTPException(403, "This token is not for this assignment.")
        if caller.person_id is None:
            person = people.learner_at_door(session, caller.door, assignment, who, name)
            return person, caller.door
    if access.role_in(session, caller, assignment.course_id) is None:
        raise HTTPException(403, "You are not a member of this course.")
    return session.get_one(Person, caller.person_id), caller.door or "submit"


def hand_in(
    session: Session, assignment: Assignment, person: Person, door: str, key: str, script: bytes
) -> intake.Receipt:
    """Take a submission, and tell open pages and waiting workers."""
    receipt = intake.submit(session, assignment, person, door, key, script, server.now())
    session.flush()
    if receipt.created:
        server.note(session, assignment.id)
        server.note(session, assignment.id, person.id)
        server.note(session, assignment.pool)
    return receipt


async def read_submission(request: Request) -> Response:
    """GET /api/submissions/{id}: the status, or the result in the format of a platform."""
    caller = await server.caller(request)
    if caller.kind in ("nobody", "worker"):
        raise HTTPException(401, NO_TOKEN)
    format = request.query_params.get("format")
    if format is not None and format not in FORMATS:
        raise HTTPException(400, f"format must be one of {', '.join(FORMATS)}.")
    answer, document = await server.of(request).read(_read, caller, request.path_params["id"])
    if format is None:
        return JSONResponse(answer)
    if answer["exit_code"] is None:
        return JSONResponse(answer, 202)
    payload = import_module(f"hvdgrade.export.{format}").payload(document) if document else None
    if payload is None:
        raise HTTPException(409, answer["message"])
    kind = "text/plain" if isinstance(payload, str) else "application/json"
    return Response(text(payload), media_type=kind)


def _read(
    session: Session, caller: Caller, id: str
) -> tuple[dict[str, Any], ResultDocument | None]:
    submission = access.submission(session, caller, id)
    role = access.role_in(session, caller, submission.assignment.course_id)
    staff = role in access.STAFF
    answer = described(session, submission, staff, server.now())
    return answer, shown_document(submission, current(session, submission), staff)


# --- the server itself ------------------------------------------------------------------------------


async def health(request: Request) -> Response:
    """GET /healthz: 200, or 503 if the database is away or its disk is nearly full."""
    await server.of(request).read(lambda session: session.execute(select(1)))
    if (free := server.free_disk(server.of(request).engine)) < 0.05:
        raise HTTPException(503, f"Only {free:.0%} of the disk of the database are free.")
    return JSONResponse({"ok": True})


async def metrics(request: Request) -> Response:
    """GET /metrics: numbers in the text format of Prometheus, for this machine only."""
    if not access.is_local(request):
        raise HTTPException(404, access.NOT_FOUND)
    numbers = await server.of(request).read(counts, server.now())
    return PlainTextResponse("".join(f"hvdgrade_{name} {value}\n" for name, value in numbers))


ROUTES = [
    Route("/api/a/{slug}/submissions", submit, methods=["POST"]),
    Route("/api/submissions/{id}", read_submission),
    Route("/healthz", health),
    Route("/metrics", metrics),
]
