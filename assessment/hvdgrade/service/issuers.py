"""The servers of others whose word counts here: CI platforms, a JupyterHub, learning platforms (LMS).

    issuers = read_issuers(table, "https://grade.example.edu", os.environ)
    settings = replace(settings, proofs=issuers.proofs(), login=issuers.login())
    with issuers.posting(engine):
        run(application(engine, settings, issuers.routes()))

The tables [[ci]], [hub] and [[lms]] of the configuration file name them; jupyterhub_and_lms.md shows how.
"""

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from hvdgrade import HvdgradeError
from hvdgrade.service import access, hub, oidc, pages, people, server
from hvdgrade.service.access import Caller
from hvdgrade.service.database import transaction
from hvdgrade.service.hub import Hub, Remembered, User, admit
from hvdgrade.service.lti import Keys, Launch, Scores
from hvdgrade.service.poster import Poster

COOKIE, COOKIE_S = "hvdgrade_login", 600
ISSUER_KEYS = {"kind": "kind", "issuer": "url", "owner": "owner"}  # of [[ci]], and of oidc.Issuer
OPTIONAL = ("owner", "audience")
STOP_S = 30.0


class BadConfig(HvdgradeError):
    """A table of the configuration file cannot be used. The message says why in one sentence."""


@dataclass(frozen=True)
class Lms:
    """A learning platform: its `iss`, our client there, and where it gives access tokens."""

    issuer: str
    client: str
    token_url: str
    audience: str = ""


@dataclass
class Issuers:
    """Whose word counts. Everything is optional."""

    verifier: oidc.Verifier | None = None
    hub: Hub | None = None
    lms: dict[str, Lms] = field(default_factory=dict)
    keys: Keys | None = None
    _remembered: Remembered = field(default_factory=Remembered)

    def proofs(self) -> tuple[Callable[[Engine, str], Caller | None], ...]:
        """Return the functions that say who sent a bearer token that is not one of ours."""
        return (*[self._of_ci] * bool(self.verifier), *[self._of_hub] * bool(self.hub))

    def login(self) -> str:
        """Return the path at which a browser signs in by the hub; "" without a hub."""
        return "/hub-login" if self.hub else ""

    def routes(self) -> list[Route]:
        """Return the routes of the login by the hub, and of our public keys."""
        routes = [Route("/jwks", self._jwks)] if self.keys else []
        if self.hub:
            routes += [
                Route("/hub-login", self._to_hub),
                Route("/launch/{slug}", self._to_hub),
                Route("/oauth_callback", self._from_hub),
            ]
        return routes

    @contextlib.contextmanager
    def posting(self, engine: Engine) -> Iterator[None]:
        """Send scores to the learning platforms as long as the block runs."""
        if not self.keys:
            yield
            return
        audiences = {each.issuer: each.audience for each in self.lms.values() if each.audience}
        stop = threading.Event()
        poster = Poster(engine, Scores(self.keys), audiences)
        thread = threading.Thread(target=poster.run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(STOP_S)

    # --- programs -----------------------------------------------------------------------------------

    def _of_ci(self, engine: Engine, token: str) -> Caller | None:
        """Return whose job sent a token of a CI."""
        if not oidc.is_token(token):
            return None
        try:
            claimed = self.verifier.claimed(token)
        except oidc.BadToken as error:
            raise HTTPException(401, str(error)) from None
        with transaction(engine) as session:
            subjects = [(claimed.issuer, subject) for subject in claimed.subjects]
            person = people.find(session, subjects)
        if person is None:
            who = " or ".join(claimed.subjects)
            raise HTTPException(
                403, f"Nobody here is {who} at {claimed.issuer}: ask the staff of your course."
            )
        kind = claimed.issuer.partition(":")[0]
        return Caller("person", person_id=person, door=kind, as_learner=True)

    def _of_hub(self, engine: Engine, token: str) -> Caller | None:
        """Return whose JupyterLab sent the token of its server."""
        if oidc.is_token(token):
            return None
        known, caller = self._remembered.get(token)
        if known:
            return caller
        user = self.hub.user_of_token(token)
        if user:
            launch = self.hub.launch_of(user)
            with transaction(engine) as session:
                person = self._admit(session, user, launch)
            caller = Caller("person", person_id=person, door=hub.DOOR, as_learner=True)
        self._remembered.keep(token, caller)
        return caller

    def _admit(self, session: Session, user: User, launch: Launch | None) -> int:
        """Return the person that a user of the hub is, and store what the LMS said of them."""
        lms = launch and self.lms.get(launch.issuer)
        person = admit(session, self.hub, user, launch if lms else None)
        if lms:
            people.remember_launch(session, launch, person, lms.client, lms.token_url)
        return person

    # --- browsers -----------------------------------------------------------------------------------

    async def _to_hub(self, request: Request) -> Response:
        """GET /hub-login?next=PATH, /launch/{slug}: let the hub say who this is.

        The link of an LMS leads to /launch/{slug}, also of somebody who is signed in: so the claims of the
        launch are read each time.
        """
        slug = request.path_params.get("slug")
        path = f"/a/{quote(slug, safe='')}" if slug else request.query_params.get("next", "/")
        if not path.startswith("/") or path.startswith("//") or "\\" in path:
            path = "/"
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        answer = RedirectResponse(self.hub.authorize_url(state, verifier), 303)
        self._set_cookie(request, answer, f"{state}.{verifier}.{quote(path, safe='')}", COOKIE_S)
        return answer

    async def _from_hub(self, request: Request) -> Response:
        """GET /oauth_callback: the browser comes back from the hub, and gets a session."""
        state, verifier, path = (request.cookies.get(COOKIE, "").split(".", 2) + ["", ""])[:3]
        given = request.query_params.get("state", "")
        if not state or not secrets.compare_digest(state.encode(), given.encode()):
            raise HTTPException(403, "This login was not begun in this browser. Begin again.")
        code = request.query_params.get("code", "")
        secret = await server.run_in_threadpool(
            self._sign_in, server.of(request).engine, code, verifier
        )
        if secret is None:
            raise HTTPException(403, "JupyterHub does not let you use this service.")
        answer = pages.seen(request, unquote(path))
        pages.set_session(answer, server.of(request).settings, secret)
        self._set_cookie(request, answer, "", 0)
        return answer

    def _sign_in(self, engine: Engine, code: str, verifier: str) -> str | None:
        """Return the secret of a new session; None if the hub does not accept the code."""
        user = self.hub.user_of_code(code, verifier)
        if user is None:
            return None
        launch = self.hub.launch_of(user)
        with transaction(engine) as session:
            person = self._admit(session, user, launch)
            return access.new_session(session, person, server.now())

    def _set_cookie(self, request: Request, answer: Response, value: str, seconds: int) -> None:
        settings = server.of(request).settings
        answer.set_cookie(
            COOKIE,
            value,
            max_age=seconds,
            path=settings.prefix or "/",
            secure=settings.https,
            httponly=True,
            samesite="lax",
        )

    async def _jwks(self, request: Request) -> Response:
        """GET /jwks: the public keys with which an LMS checks us."""
        return JSONResponse(self.keys.jwks(), headers={"Cache-Control": "max-age=3600"})


def read_issuers(table: Mapping[str, Any], address: str, environment: Mapping[str, str]) -> Issuers:
    """Return the issuers of a configuration file.

    Args:
        table: may have ci, hub, lms and lti_keys.
        address: of this server, which is the audience of the tokens of a CI.
        environment: variables, see `hub.from_environment`.

    Raises:
        BadConfig: a table cannot be used.
        BadKey: a key of `lti_keys` cannot be used.
    """
    made = Issuers()
    try:
        if table.get("ci"):
            found = [oidc.Issuer(**_texts(each, ISSUER_KEYS, "[[ci]]")) for each in table["ci"]]
            made.verifier = oidc.Verifier(address, found)
        names = {name: name for name in Lms.__annotations__}
        for each in table.get("lms", []):
            lms = Lms(**_texts(each, names, "[[lms]]"))
            made.lms[lms.issuer] = lms
        if table.get("hub"):
            made.hub = hub.from_environment(environment, address, table["hub"], bool(made.lms))
    except (ValueError, TypeError) as error:
        raise BadConfig(str(error)) from None
    if made.lms:
        made.keys = Keys([Path(name) for name in table.get("lti_keys") or ["lti.pem"]])
    return made


def _texts(table: Any, names: Mapping[str, str], title: str) -> dict[str, str]:
    """Return the texts of a table under the names of a class.

    Raises:
        ValueError: the table has another key, or a value that is no text.
    """
    if not isinstance(table, dict):
        raise ValueError(f"{title} must be a table. Received: {table!r}")
    for key, value in table.items():
        if key not in names or not isinstance(value, str):
            known = ", ".join(names)
            raise ValueError(
                f"{title}: {key} = {value!r} is not a text of one of these keys: {known}."
            )
    if missing := [name for name in names if name not in table and name not in OPTIONAL]:
        raise ValueError(f"{title} needs {', '.join(missing)}.")
    return {names[key]: value for key, value in table.items()}
