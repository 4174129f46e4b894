"""Who somebody is, and what they may see: bearer tokens, sessions of a browser, roles, and forms.

A program sends a token with each request. A browser opens a link once, gets a session in a cookie, and sends
with each form a second secret, which only pages of this service know. The database holds hashes of tokens.
Every query contains the caller, so that the work of others is found as little as work that does not exist.
"""

import datetime
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from ipaddress import ip_address

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request

from hvdgrade.service.models import (
    INSTRUCTOR,
    LEARNER,
    ROLES,
    TA,
    Assignment,
    Course,
    Member,
    Submission,
    Token,
)

STAFF = (TA, INSTRUCTOR)
COOKIE = "hvdgrade_session"
SESSION = datetime.timedelta(days=14)
LINK = datetime.timedelta(minutes=15)
NOT_FOUND = "There is no such page, or it is not yours."
# Destinations of a request that a page of this service makes: a form or link, and what keeps a page current.
# A page of another user on the same host can make others, for example frames.
OURS = {"document", "empty"}


@dataclass(frozen=True)
class Caller:
    """Who sends a request."""

    kind: str = "nobody"  # or "person" (by token), "session" (by cookie), "door", "worker"
    token_id: int | None = None  # None if another issuer's token proves who it is
    person_id: int | None = None
    name: str = ""
    assignment_id: int | None = None
    door: str = ""
    pool: str = ""
    csrf: str = ""  # what a form of this session must contain
    # Roles of staff do not apply where the code of others may run next to the token: in a CI, in JupyterLab.
    as_learner: bool = False


NOBODY = Caller()


def digest(secret: str) -> str:
    """Return the hash under which the database knows a secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def bearer(request: Request) -> str:
    """Return the token of a program; "" without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def known(session: Session, secret: str, kinds: set[str], now: datetime.datetime) -> Caller | None:
    """Return whose secret this is, or None if it is unknown, revoked, too old or of another kind."""
    token = session.scalar(
        select(Token).where(Token.sha256 == digest(secret), Token.kind.in_(kinds))
    )
    if not token or token.revoked or (token.expires and token.expires <= now):
        return None
    if token.person_id and (token.person is None or token.person.removed_at):
        return None
    name = token.person.name or token.person.email if token.person else token.door
    csrf = hmac.new(secret.encode(), b"form", "sha256").hexdigest()
    return Caller(
        kind=token.kind,
        token_id=token.id,
        person_id=token.person_id,
        name=name,
        assignment_id=token.assignment_id,
        door=token.door,
        pool=token.pool,
        csrf=csrf if token.kind == "session" else "",
    )


def begin_session(session: Session, secret: str, local: bool, now: datetime.datetime) -> str | None:
    """Begin a session of a browser with a person's token, or with a link, which works once.

    A link without an end works only in a browser on this machine (`local`).

    Returns:
        The secret of the session; None if the link is used, too old or unknown.
    """
    caller = known(session, secret, {"link", "person"}, now)
    if not caller or not caller.person_id:
        return None
    if caller.kind == "link":
        link = session.get(Token, caller.token_id, with_for_update=True, populate_existing=True)
        if link.revoked or (link.expires is None and not local):
            return None
        link.revoked = now
    return new_session(session, caller.person_id, now)


def new_session(session: Session, person_id: int, now: datetime.datetime) -> str:
    """Add a session of a browser and return its secret."""
    return new_token(session, "session", person_id, now, now + SESSION)


def new_token(
    session: Session,
    kind: str,
    person_id: int | None,
    now: datetime.datetime,
    expires: datetime.datetime | None = None,
    **columns: str | int,
) -> str:
    """Add a token and return its secret, which is stored nowhere."""
    secret = secrets.token_urlsafe(32)
    row = Token(kind=kind, person_id=person_id, created=now, expires=expires, **columns)
    row.sha256 = digest(secret)
    session.add(row)
    return secret


# --- the browser ------------------------------------------------------------------------------------


def is_local(request: Request) -> bool:
    """Return whether the request comes from this machine and names this machine."""
    hosts = [request.client.host if request.client else "", request.url.hostname or ""]
    return all(_is_loopback(host) for host in hosts)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_origin(request: Request) -> None:
    """Answer 403 to a form that a page of another origin sends.

    A browser sends no `Sec-Fetch-` headers to an unencrypted address in a network. Then `Origin` decides.
    """
    site, destination = (request.headers.get(f"sec-fetch-{name}") for name in ("site", "dest"))
    host = request.headers.get("origin", "").partition("://")[2]
    ours = site == "same-origin" if site else host == request.headers.get("host")
    if not ours or (destination or "document") not in OURS:
        raise HTTPException(403, "This form was not sent from a page of this service.")


def check_destination(request: Request) -> None:
    """Show a page only in a tab of its own, and to the script that keeps it current; else answer 403."""
    destination = request.headers.get("sec-fetch-dest", "document")
    site = request.headers.get("sec-fetch-site", "none")
    if destination not in OURS or (destination == "empty" and site != "same-origin"):
        raise HTTPException(403, "This page opens only in a tab of its own.")


def check_form(caller: Caller, sent: str) -> None:
    """Answer 403 to a form that does not contain the secret of its session."""
    if not caller.csrf or not hmac.compare_digest(caller.csrf.encode(), sent.encode()):
        raise HTTPException(403, "This form is too old. Reload the page and send it again.")


# --- what a caller may see --------------------------------------------------------------------------


def role_in(session: Session, caller: Caller, course_id: int) -> str | None:
    """Return the role of a caller in a course."""
    if caller.person_id is None:
        return None
    member = session.get(Member, (course_id, caller.person_id))
    return (LEARNER if caller.as_learner else member.role) if member else None


def assignment(
    session: Session, caller: Caller, slug: str, roles: tuple[str, ...] = ROLES
) -> tuple[Assignment, str]:
    """Return an assignment of a course in which the caller has one of these roles, and the role; else 404."""
    found = session.execute(
        select(Assignment, Member.role)
        .join(Member, Member.course_id == Assignment.course_id)
        .where(
            Assignment.slug == slug,
            Member.person_id == caller.person_id,
            Member.role.in_(roles),
        )
    ).first()
    if not found:
        raise HTTPException(404, NOT_FOUND)
    return found[0], found[1]


def assignments(session: Session, caller: Caller) -> list[tuple[Assignment, Course, str]]:
    """Return the assignments of all courses of a caller, with the course and the role."""
    rows = session.execute(
        select(Assignment, Course, Member.role)
        .join(Course, Course.id == Assignment.course_id)
        .join(Member, Member.course_id == Course.id)
        .where(Member.person_id == caller.person_id)
        .order_by(Course.title, Assignment.due, Assignment.id)
    )
    return [(row[0], row[1], row[2]) for row in rows]


def submission(session: Session, caller: Caller, id: str) -> Submission:
    """Return a submission of the caller, of their door, or of a course that they teach; else answer 404."""
    teaches = and_(
        Member.course_id == Assignment.course_id,
        Member.person_id == caller.person_id,
        Member.role.in_(STAFF),
    )
    mine = [] if caller.as_learner else [select(Member.person_id).where(teaches).exists()]
    if caller.person_id is not None:
        mine.append(Submission.person_id == caller.person_id)
    if caller.kind == "door":
        own = Submission.assignment_id == caller.assignment_id
        mine.append(and_(own, Submission.door == caller.door))
    found = session.scalar(
        select(Submission)
        .join(Assignment, Assignment.id == Submission.assignment_id)
        .where(Submission.id == id, or_(*mine))
    )
    if found is None:
        raise HTTPException(404, NOT_FOUND)
    return found
