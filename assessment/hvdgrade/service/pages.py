"""Pages for a browser: log in, see the assignments, hand in, watch a grading, read its report, appeal.

A page is whole without scripts. static/live.js keeps the parts of it current that are marked `data-live`: it
fetches the same page again when the server reports a change. That is all it does, so no library is needed.
"""

import datetime
import secrets
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, defer
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from hvdgrade.report import pages as report
from hvdgrade.service import access, api, grades, intake, server, status
from hvdgrade.service.access import Caller
from hvdgrade.service.models import (
    DONE,
    FAULT,
    Appeal,
    Assignment,
    Grade,
    Grading,
    Person,
    Submission,
    Token,
)
from hvdgrade.service.rendering import (
    SIGN_IN,
    environment,
    file_of,
    form,
    page,
    render,
    seen,
    set_cookie,
    shown,
    text_of,
)

REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)


# --- signing in -------------------------------------------------------------------------------------


async def login(request: Request) -> Response:
    """GET /login?token=...: a button. Programs that look at links in messages do not press it."""
    token = request.query_params.get("token", "")
    return render(request, access.NOBODY, "login.html.j2", token=token, sentence=SIGN_IN)


async def sign_in(request: Request) -> Response:
    """POST /login: begin a session of this browser by a link or by the token of a person."""
    access.check_origin(request)
    service, fields = server.of(request), await server.form(request)
    link, local = text_of(fields, "token"), access.is_local(request)
    begun = await service.work(access.begin_session, link, local, server.now())
    if begun is None:
        server.count_failure(request)
        raise HTTPException(
            403, "This link or token is unknown, used before, or too old. Ask for a new one."
        )
    return signed_in(request, "/", begun)


def signed_in(request: Request, path: str, secret: str) -> Response:
    """Show a page to a browser whose session has begun."""
    answer = seen(request, path)
    set_cookie(request, answer, access.COOKIE, secret, access.SESSION.total_seconds())
    return answer


@form
async def sign_out(request: Request, caller: Caller, fields: FormData) -> Response:
    """POST /logout: end the session."""

    def revoke(session: Session) -> None:
        session.get_one(Token, caller.token_id).revoked = server.now()

    await server.of(request).work(revoke)
    answer = seen(request, "/login")
    set_cookie(request, answer, access.COOKIE, "", 0)
    return answer


# --- what a learner sees ----------------------------------------------------------------------------


@shown("home.html.j2")
def home(session: Session, caller: Caller) -> dict[str, Any]:
    """GET /: the assignments of all courses."""
    rows = [
        {
            "assignment": assignment,
            "course": course,
            "staff": role in access.STAFF,
            "grade": grade_of(session, assignment, caller.person_id, role in access.STAFF),
        }
        for assignment, course, role in access.assignments(session, caller)
    ]
    return {"rows": rows}


def grade_of(
    session: Session, assignment: Assignment, person: int | None, staff: bool
) -> Grade | None:
    """Return the grade of a person, if the reader may see it."""
    if status.is_hidden(assignment, staff):
        return None
    return session.get(Grade, (assignment.id, person))


@shown("assignment.html.j2")
def assignment(session: Session, caller: Caller, slug: str) -> dict[str, Any]:
    """GET /a/{slug}: hand in, and the attempts so far."""
    found, role = access.assignment(session, caller, slug)
    person, now = session.get_one(Person, caller.person_id), server.now()
    due, closes = intake.deadlines(session, found, person)
    return {
        "assignment": found,
        "key": secrets.token_urlsafe(12),
        "staff": role in access.STAFF,
        "due": due,
        "closes": closes,
        "not_yet": found.opens and now < found.opens,
        "open": (not found.opens or found.opens <= now) and (not closes or now <= closes),
        "used": intake.attempts_used(session, found, person),
        "allowed": intake.attempts_allowed(session, found, person),
        "attempts": attempts(session, found, person.id, False, now),
        "grade": grade_of(session, found, person.id, False),
        "online": status.workers_online(session, now, found.pool),
    }


def attempts(
    session: Session, assignment: Assignment, person: int, staff: bool, now: datetime.datetime
) -> list[dict[str, Any]]:
    """Return the submissions of a person, the newest first."""
    mine = select(Submission).filter_by(assignment_id=assignment.id, person_id=person)
    newest_first = mine.order_by(Submission.number.desc()).options(defer(Submission.script))
    return [
        {"received": each.received, **status.described(session, each, staff, now)}
        for each in session.scalars(newest_first)
    ]


async def _hand_in(request: Request, caller: Caller, fields: FormData) -> Response:
    """POST /a/{slug}: take a script from the page."""
    script = await file_of(fields, "script")

    def take(session: Session) -> str:
        where, _ = access.assignment(session, caller, request.path_params["slug"])
        person = session.get_one(Person, caller.person_id)
        key = text_of(fields, "key")
        return api.hand_in(session, where, person, "page", key, script).submission.id

    return seen(request, f"/s/{await server.of(request).work(take)}")


@shown("submission.html.j2")
def submission(session: Session, caller: Caller, id: str) -> dict[str, Any]:
    """GET /s/{id}: the state of a submission, its result, and what can be done about it."""
    found = access.submission(session, caller, id)
    role = access.role_in(session, caller, found.assignment.course_id)
    staff = role in access.STAFF
    grading = status.current(session, found)
    document = status.shown_document(found, grading, staff)
    all_of_it = select(Grading).where(Grading.submission_id == id).order_by(Grading.id)
    appeals = select(Appeal).where(Appeal.submission_id == id).order_by(Appeal.id)
    return {
        "submission": found,
        "assignment": found.assignment,
        "person": found.person,
        "staff": staff,
        "instructor": role == access.INSTRUCTOR,
        "mine": found.person_id == caller.person_id,
        "status": status.described(session, found, staff, server.now()),
        "has_report": bool(document) and (staff or found.assignment.feedback == "full"),
        "gradings": session.scalars(all_of_it).all() if staff else [],
        "appeals": session.scalars(appeals).all(),
    }


@page
async def report_of(request: Request, caller: Caller) -> Response:
    """GET /s/{id}/report: the page that `hvdgrade run` writes. Nothing in it runs."""
    text = await server.of(request).read(_report, caller, request.path_params["id"])
    return HTMLResponse(text, headers={"Content-Security-Policy": REPORT_POLICY})


def _report(session: Session, caller: Caller, id: str) -> str:
    found = access.submission(session, caller, id)
    staff = access.role_in(session, caller, found.assignment.course_id) in access.STAFF
    document = status.shown_document(found, status.current(session, found), staff)
    if document is None or (found.assignment.feedback != "full" and not staff):
        raise HTTPException(404, "There is no report of this submission that you may see.")
    return report.report_page(document, found.script)


@page
async def script(request: Request, caller: Caller) -> Response:
    """GET /s/{id}/script: what was handed in, as plain text."""
    id = request.path_params["id"]
    text = await server.of(request).read(
        lambda session: access.submission(session, caller, id).script
    )
    return PlainTextResponse(text, headers={"Content-Security-Policy": "sandbox"})


@form
async def appeal(request: Request, caller: Caller, fields: FormData) -> Response:
    """POST /s/{id}/appeal: ask staff about a result."""
    id = request.path_params["id"]

    def ask(session: Session) -> None:
        found = access.submission(session, caller, id)
        grading = status.current(session, found)
        done = grading is not None and grading.state in (DONE, FAULT)
        if found.person_id != caller.person_id or not done:
            raise HTTPException(403, "You can ask about a result of yours, after it was graded.")
        grades.appeal(session, found, text_of(fields, "text"), server.now())
        server.note(session, found.assignment_id, found.person_id)

    await server.of(request).work(ask)
    return seen(request, f"/s/{id}")


async def style(request: Request) -> Response:
    """GET /static/style.css: the look of the reports, and what the pages add to it."""
    text = "\n".join(
        environment().get_template(name).render() for name in ("style.css", "service.css")
    )
    return Response(text, media_type="text/css", headers={"Cache-Control": "max-age=300"})


ROUTES = [
    Route("/", home),
    Route("/login", login),
    Route("/login", sign_in, methods=["POST"]),
    Route("/logout", sign_out, methods=["POST"]),
    Route("/a/{slug}", assignment),
    Route("/a/{slug}", form(_hand_in), methods=["POST"]),
    Route("/s/{id}", submission),
    Route("/s/{id}/report", report_of),
    Route("/s/{id}/script", script),
    Route("/s/{id}/appeal", appeal, methods=["POST"]),
    Route("/static/style.css", style),
]
