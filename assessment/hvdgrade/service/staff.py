"""What staff see of a class: who has handed in what, the queue, the workers, and the log."""

import datetime
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer, joinedload
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hvdgrade.report.pages import class_numbers
from hvdgrade.report.wording import warnings_of
from hvdgrade.service import (
    access,
    compare,
    cost,
    evidence,
    intake,
    pages,
    poster,
    rendering,
    server,
    wait_times,
)
from hvdgrade.service.access import Caller
from hvdgrade.service.downloads import DOWNLOADS, FILLED
from hvdgrade.service.models import (
    DONE,
    FAULT,
    INSTRUCTOR,
    LEARNER,
    LEASED,
    QUEUED,
    Appeal,
    Assignment,
    Event,
    Extension,
    Grade,
    Grading,
    LineItem,
    Member,
    Person,
    Submission,
    Worker,
)
from hvdgrade.service.results import briefs, newest
from hvdgrade.service.staff_forms import ACTIONS, Form

MOST_ROWS = 500
FORGOTTEN = datetime.timedelta(days=2)  # after which a silent worker is no longer listed
GRADEBOOK_BYTES = 4_000_000
T = TypeVar("T")
AWAY = "Nothing was heard of it: it has ended, or it cannot reach this server."
View = Callable[[Session, Assignment, datetime.datetime], dict[str, Any]]


def class_of(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return the rows of the class and their numbers."""
    results = briefs(session, assignment)
    last = {each.person_id: each for each in newest(session, assignment)}
    of_this = select(Grade).where(Grade.assignment_id == assignment.id)
    grades = {each.person_id: each for each in session.scalars(of_this)}
    states = session.execute(
        select(Grading.submission_id, Grading.state, Grading.verdict)
        .where(Grading.submission_id.in_([each.id for each in last.values()]))
        .order_by(Grading.id)
    )
    state = {
        id: rendering.NOT_GRADABLE if word == DONE and verdict is None else word
        for id, word, verdict in states
    }
    learners = session.scalars(
        select(Person)
        .join(Member, Member.person_id == Person.id)
        .where(Member.course_id == assignment.course_id, Member.role == LEARNER)
    )
    rows = [
        {
            "person": each,
            "last": last.get(each.id),
            "state": state.get(last[each.id].id, QUEUED) if each.id in last else "",
            "grade": grades.get(each.id),
            "result": results.get(each.id) or {},
        }
        for each in sorted(learners, key=lambda each: (each.name or each.email).casefold())
    ]
    documents = list(results.values())
    return {"rows": rows, "warnings": warnings_of(documents), **class_numbers(documents)}


def checks(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return which check failed how often, in the results that count."""
    return {"checks": class_numbers(list(briefs(session, assignment).values()))["checks"]}


def waiting(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return what waits or runs in the pool, and what ended in a fault. Other courses stay without names."""
    about = (
        select(Grading)
        .join(Submission, Submission.id == Grading.submission_id)
        .options(joinedload(Grading.submission).defer(Submission.script), defer(Grading.document))
    )
    is_open = Grading.state.in_((QUEUED, LEASED))
    rows = session.scalars(
        about.where(Grading.pool == assignment.pool, is_open)
        .order_by(Grading.state, Grading.rank, Grading.id)
        .limit(MOST_ROWS)
    ).all()
    faults = session.scalars(
        about.where(Grading.state == FAULT, Submission.assignment_id == assignment.id)
        .order_by(Grading.id.desc())
        .limit(50)
    ).all()
    ours = {
        each.id for each in rows if each.submission.assignment.course_id == assignment.course_id
    }
    names = {each.id: each.name for each in session.scalars(select(Worker))}
    return {"rows": rows, "ours": ours, "faults": faults, "worker_names": names}


def workers(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return the workers of the pool, and in a sentence why one of them gets nothing."""
    known = select(Worker).where(Worker.pool == assignment.pool, Worker.seen > now - FORGOTTEN)
    rows = []
    for each in session.scalars(known.order_by(Worker.name)):
        online = each.seen > wait_times.online_since(now)
        rows.append({"worker": each, "online": online, "why": each.refused if online else AWAY})
    return {"rows": rows}


def person(
    id: int, session: Session, assignment: Assignment, now: datetime.datetime
) -> dict[str, Any]:
    """Return the attempts, points and deadline of one learner."""
    if session.get(Member, (assignment.course_id, id)) is None:
        raise HTTPException(404, access.NOT_FOUND)
    found = session.get_one(Person, id)
    return {
        "person": found,
        "attempts": pages.attempts(session, assignment, id, True, now),
        "grade": session.get(Grade, (assignment.id, id)),
        "extension": session.get(Extension, (assignment.id, id)),
        "used": intake.attempts_used(session, assignment, found),
    }


def scores(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return the scores for the LMS, and which LMS it is."""
    item = session.get(LineItem, assignment.id)
    return {"rows": poster.newest(session, assignment), "issuer": item and item.issuer}


def log(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return the newest lines of the course's log."""
    lines = select(Event).where(Event.course_id == assignment.course_id)
    return {"rows": session.scalars(lines.order_by(Event.id.desc()).limit(MOST_ROWS)).all()}


def nothing(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return nothing: the page shows only the assignment."""
    return {}


VIEWS: dict[str, tuple[str, View]] = {  # name in the address -> name on the page, what it shows
    "": ("class", class_of),
    "checks": ("checks", checks),
    "queue": ("queue", waiting),
    "workers": ("workers", workers),
    "appeals": ("appeals", evidence.appeals),
    "posts": ("posts", scores),
    "regrade": ("regrade", evidence.regrades),
    "similar": ("similar", nothing),
    "settings": ("settings", nothing),
    "download": ("downloads", nothing),
    "cost": ("cost", nothing),
    "log": ("log", log),
}


def of_assignment(
    request: Request, caller: Caller, view: Callable[..., T], roles: tuple[str, ...] = access.STAFF
) -> Callable[[Session], T]:
    """Return a function of a session that gives `view` the assignment of the address, and the role.

    It answers 404 to a caller who has none of these roles in the course.
    """

    def found(session: Session) -> T:
        slug = request.path_params["slug"]
        return view(session, *access.assignment(session, caller, slug, roles))

    return found


async def _shown(request: Request, caller: Caller, name: str, view: View, **more: Any) -> Response:
    """Return a page of an assignment, for its staff."""

    def found(session: Session, assignment: Assignment, role: str) -> dict[str, Any]:
        appeals = select(func.count(Appeal.id)).join(
            Submission, Submission.id == Appeal.submission_id
        )
        is_open = (Submission.assignment_id == assignment.id, Appeal.state == "open")
        return {
            "assignment": assignment,
            "instructor": role == INSTRUCTOR,
            "parts": {key: shown for key, (shown, _) in VIEWS.items()},
            "here": name,
            "open_appeals": session.scalar(appeals.where(*is_open)),
            "address": server.of(request).settings.address,
            **view(session, assignment, server.now()),
            **more,
        }

    template = f"staff_{name or 'class'}.html.j2"
    return await rendering.show(request, caller, template, of_assignment(request, caller, found))


@rendering.page
async def staff_page(request: Request, caller: Caller) -> Response:
    """GET /i/{slug} and /i/{slug}/{part}: one of the pages of VIEWS."""
    name = request.path_params.get("part", "")
    if name not in VIEWS:
        raise HTTPException(404, access.NOT_FOUND)
    if name == "cost":
        return await _shown(request, caller, name, partial(_cost, request.query_params))
    if name == "similar" and "compare" in request.query_params:
        return await _compared(request, caller)
    return await _shown(request, caller, name, VIEWS[name][1])


def _cost(
    query: QueryParams, session: Session, assignment: Assignment, now: datetime.datetime
) -> dict[str, Any]:
    return cost.found(Form(session, assignment, query, "", now))


@rendering.page
async def person_page(request: Request, caller: Caller) -> Response:
    """GET /i/{slug}/person/{id}."""
    return await _shown(request, caller, "person", partial(person, request.path_params["id"]))


async def _compared(request: Request, caller: Caller) -> Response:
    """Return the pairs of similar scripts. Comparing takes a while, and happens in another process."""

    def newest_of(
        session: Session, assignment: Assignment, role: str
    ) -> list[tuple[str, bytes, str]]:
        found = newest(session, assignment, script=True)
        return [(each.id, each.script, each.person.name) for each in found]

    scripts = await server.of(request).read(of_assignment(request, caller, newest_of))
    sources = {id: script for id, script, _ in scripts}
    pairs = await server.run_in_threadpool(compare.similar, sources)
    if pairs is None:
        raise HTTPException(
            503, "The comparison crashed or took too long. Compare in smaller groups."
        )
    more = {"pairs": pairs[:MOST_ROWS], "names": {id: name for id, _, name in scripts}}
    return await _shown(request, caller, "similar", nothing, **more)


@rendering.form
async def change(request: Request, caller: Caller, fields: FormData) -> Response:
    """POST /i/{slug}/{action}: one of ACTIONS, for instructors."""
    action = _named(ACTIONS, request.path_params["action"])

    def work(session: Session, assignment: Assignment, role: str) -> str:
        path = action(Form(session, assignment, fields, caller.name or "staff", server.now()))
        server.note(session, assignment.id)
        server.note(session, assignment.pool)
        return path

    work = of_assignment(request, caller, work, (INSTRUCTOR,))
    return rendering.seen(request, await server.of(request).work(work))


@rendering.page
async def download(request: Request, caller: Caller) -> Response:
    """GET /i/{slug}/download/{format}: a file with the results that count, for instructors."""
    make = _named(DOWNLOADS, request.path_params["format"])

    def work(session: Session, assignment: Assignment, role: str) -> Response:
        return make(session, assignment)

    return await server.of(request).read(of_assignment(request, caller, work, (INSTRUCTOR,)))


async def _fill(request: Request, caller: Caller, fields: FormData) -> Response:
    """POST /i/{slug}/download/{format}: fill a file of a learning platform with the points."""
    make = _named(FILLED, request.path_params["format"])
    data = await rendering.file_of(fields, "file")

    def work(session: Session, assignment: Assignment, role: str) -> Response:
        return make(session, assignment, data, rendering.text_of(fields, "column"))

    return await server.of(request).read(of_assignment(request, caller, work, (INSTRUCTOR,)))


def _named(table: dict[str, T], name: str) -> T:
    """Return what the address names, or answer 404."""
    if name not in table:
        raise HTTPException(404, access.NOT_FOUND)
    return table[name]


ROUTES = [
    Route("/i/{slug}/person/{id:int}", person_page),
    Route("/i/{slug}/download/{format}", download),
    Route("/i/{slug}/download/{format}", rendering.form(_fill, GRADEBOOK_BYTES), methods=["POST"]),
    Route("/i/{slug}", staff_page),
    Route("/i/{slug}/{part}", staff_page),
    Route("/i/{slug}/{action}", change, methods=["POST"]),
]
