"""The frame of every page: its templates, who may see it, and how its forms are checked."""

import datetime
from collections.abc import Awaitable, Callable
from functools import cache, wraps
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import ChoiceLoader, Environment, PackageLoader, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from sqlalchemy.orm import Session
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from hvdgrade.output.text import plain
from hvdgrade.report import pages as report
from hvdgrade.report.wording import OUTCOMES
from hvdgrade.service import access, server
from hvdgrade.service.access import Caller
from hvdgrade.service.models import DONE, FAULT, LEASED, QUEUED

NOT_GRADABLE = "not gradable"
SIGN_IN = "Open the link that you were given. This browser then stays signed in."
SIGNS = {  # of the state of a submission: style, shape, word
    QUEUED: ("skipped", "…", "waits"),
    LEASED: ("partial", "▶", "is being graded"),
    DONE: ("pass", "✓", "graded"),
    NOT_GRADABLE: ("partial", "○", "not gradable"),
    FAULT: ("error", "!", "grader fault"),
    "cancelled": ("skipped", "–", "cancelled"),
    "replaced": ("skipped", "–", "replaced"),
}
View = Callable[[Request, Caller], Awaitable[Response]]
Action = Callable[[Request, Caller, FormData], Awaitable[Response]]


@cache
def environment() -> Environment:
    """Return the templates of the service, and those of the reports."""
    made = report.environment().overlay(
        loader=ChoiceLoader([PackageLoader("hvdgrade.service"), PackageLoader("hvdgrade.report")])
    )
    made.filters |= {"when": when, "field": field, "about": about, "plain": plain}
    made.globals |= {"sign_of": sign_of}
    return made


def zone_of(name: str | None) -> datetime.tzinfo:
    """Return the time zone of this name; UTC if there is none."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return datetime.UTC


@pass_context
def when(context: Context, moment: datetime.datetime | None) -> str:
    """Return a moment in the time zone of the reader."""
    if moment is None:
        return "–"
    local = moment.astimezone(context["zone"])
    made = Markup('<time datetime="{}">{}</time>')
    return made.format(local.isoformat(), local.strftime("%a %d %b %Y, %H:%M %Z"))


@pass_context
def field(context: Context, moment: datetime.datetime | None) -> str:
    """Return a moment as the value of an `<input type="datetime-local">`."""
    return moment.astimezone(context["zone"]).strftime("%Y-%m-%dT%H:%M") if moment else ""


def about(seconds: float | None) -> str:
    """Return a waiting time in words."""
    minutes = max(1, round((seconds or 0) / 60))
    return f"about {minutes} minute{'s' * (minutes > 1)}"


def sign_of(state: str, verdict: str | None = None) -> dict[str, str]:
    """Return style, shape and word of a submission's state, or of its verdict."""
    if verdict in ("pass", "fail"):
        css, sign, word, _ = OUTCOMES[verdict]
    else:
        css, sign, word = SIGNS.get(state, ("skipped", "?", state))
    return {"css": css, "sign": sign, "word": word}


def render(
    request: Request, caller: Caller, template: str, code: int = 200, /, **context: Any
) -> Response:
    """Return a page. What the script of a page fetches contains no secret for forms."""
    settings = server.of(request).settings
    fetched = request.headers.get("sec-fetch-dest") == "empty"
    text = environment().get_template(template).render(
        root=settings.prefix,
        caller=caller,
        csrf="" if fetched else caller.csrf,
        zone=zone_of(request.cookies.get("zone", "").replace("%2F", "/")),
        **context,
    )  # fmt: skip
    return HTMLResponse(text, code)


async def show(
    request: Request, caller: Caller, template: str, view: Callable[[Session], dict[str, Any]]
) -> Response:
    """Return a page of what `view` finds in the database."""

    def made(session: Session) -> Response:
        return render(request, caller, template, **view(session))

    return await server.of(request).read(made)


def set_cookie(request: Request, answer: Response, name: str, value: str, seconds: float) -> None:
    """Give a browser a cookie that no script reads and no other site sends; 0 seconds remove it."""
    settings = server.of(request).settings
    answer.set_cookie(
        name,
        value,
        max_age=int(seconds),
        path=settings.prefix or "/",
        secure=settings.https,
        httponly=True,
        samesite="lax",
    )


def problem(
    request: Request, code: int, sentence: str, headers: dict[str, str] | None = None
) -> Response:
    """Return the page of an error."""
    made = render(request, access.NOBODY, "problem.html.j2", code, sentence=sentence, code=code)
    made.headers.update(headers or {})
    return made


def page(view: View) -> Callable[[Request], Awaitable[Response]]:
    """Return the route of a page that only people who are signed in see."""

    @wraps(view)
    async def route(request: Request) -> Response:
        access.check_destination(request)
        caller = await server.caller(request)
        if caller.kind != "session":
            return must_sign_in(request)
        return await view(request, caller)

    return route


def shown(template: str) -> Callable[[Callable[..., dict[str, Any]]], Callable]:
    """Return a decorator: the route of a page that shows what a view (session, caller, ...) finds.

    What the address names are further arguments of the view.
    """

    def decorator(view: Callable[..., dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
        @page
        @wraps(view)
        async def route(request: Request, caller: Caller) -> Response:
            def found(session: Session) -> dict[str, Any]:
                return view(session, caller, **request.path_params)

            return await show(request, caller, template, found)

        return route

    return decorator


def must_sign_in(request: Request) -> Response:
    """Send a browser to the other server by which people sign in, and then back to this page.

    If there is no other server, or a script asks, the answer is 401.
    """
    settings = server.of(request).settings
    if not settings.login or request.headers.get("sec-fetch-dest", "document") != "document":
        raise HTTPException(401, SIGN_IN)
    path = quote(request.url.path.removeprefix(settings.prefix) or "/", safe="/")
    return RedirectResponse(f"{settings.prefix}{settings.login}?next={path}", 303)


def form(action: Action, most: int = server.FORM_BYTES) -> Callable[[Request], Awaitable[Response]]:
    """Return the route of a form of a page."""

    @wraps(action)
    async def route(request: Request) -> Response:
        access.check_origin(request)
        caller = await server.caller(request)
        if caller.kind != "session":
            raise HTTPException(401, SIGN_IN)
        with server.of(request).uploads.one(caller.person_id):
            fields = await server.form(request, most)
        access.check_form(caller, text_of(fields, "csrf"))
        return await action(request, caller, fields)

    return route


def text_of(fields: FormData, name: str) -> str:
    """Return a text field of a form; "" without one."""
    value = fields.get(name)
    return server.clean(value).strip() if isinstance(value, str) else ""


async def file_of(fields: FormData, name: str) -> bytes:
    """Return the content of a file that a form holds; b"" without one."""
    file = fields.get(name)
    return await file.read() if isinstance(file, UploadFile) else b""


def seen(request: Request, path: str) -> Response:
    """Return the answer to a form: a page that shows what it changed."""
    return RedirectResponse(server.of(request).settings.prefix + path, 303)
