"""The servers of others whose word counts here: CI platforms, a JupyterHub, learning platforms (LMS).

    issuers = issuers_of(configuration, "https://grade.example.edu", os.environ)
    settings = replace(settings, proofs=issuers.proofs(), login=issuers.login())
    with issuers.posting(engine):
        run(application(engine, settings, issuers.routes()))

The tables [[ci]], [hub] and [[lms]] of the configuration name them (configuration.py).
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from sqlalchemy import Engine
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from hvdgrade.service import access, hub, oidc, pages, people, rendering, server
from hvdgrade.service.access import Caller, digest
from hvdgrade.service.configuration import Configuration, Lms
from hvdgrade.service.database import transaction
from hvdgrade.service.hub import Hub, User, admit
from hvdgrade.service.lti import Keys, Scores
from hvdgrade.service.poster import Poster

COOKIE, COOKIE_S = "hvdgrade_login", 600
STOP_S = 30.0
REMEMBER_S, MOST_REMEMBERED = 60.0, 2000


@dataclass
class Issuers:
    """Whose word counts. Everything is optional."""

    verifier: oidc.Verifier | None = None
    hub: Hub | None = None
    lms: dict[str, Lms] = field(default_factory=dict)
    keys: Keys | None = None
    # Digest of a token of the hub -> its caller, and until when the hub is not asked again.
    _of_token: dict[str, tuple[Caller | None, float]] = field(default_factory=dict)

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
        caller, until = self._of_token.get(digest(token), (None, 0.0))
        if time.monotonic() < until:
            return caller
        caller = None
        if user := self.hub.user_of_token(token):
            person = self._admit(engine, user)
            caller = Caller("person", person_id=person, door=hub.DOOR, as_learner=True)
        if len(self._of_token) >= MOST_REMEMBERED:
            self._of_token.clear()
        self._of_token[digest(token)] = (caller, time.monotonic() + REMEMBER_S)
        return caller

    def _admit(self, engine: Engine, user: User) -> int:
        """Return the person that a user of the hub is, and store what the LMS said of them."""
        launch = self.hub.launch_of(user)
        lms = launch and self.lms.get(launch.issuer)
        with transaction(engine) as session:
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
        value = f"{state}.{verifier}.{quote(path, safe='')}"
        rendering.set_cookie(request, answer, COOKIE, value, COOKIE_S)
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
        answer = pages.signed_in(request, unquote(path), secret)
        rendering.set_cookie(request, answer, COOKIE, "", 0)
        return answer

    def _sign_in(self, engine: Engine, code: str, verifier: str) -> str | None:
        """Return the secret of a new session; None if the hub does not accept the code."""
        user = self.hub.user_of_code(code, verifier)
        if user is None:
            return None
        person = self._admit(engine, user)
        with transaction(engine) as session:
            return access.new_session(session, person, server.now())

    async def _jwks(self, request: Request) -> Response:
        """GET /jwks: the public keys with which an LMS checks us."""
        return JSONResponse(self.keys.jwks(), headers={"Cache-Control": "max-age=3600"})


def issuers_of(config: Configuration, address: str, environment: Mapping[str, str]) -> Issuers:
    """Return the issuers that a configuration names.

    Args:
        address: of this server, which is the audience of the tokens of a CI.
        environment: variables, see `hub.from_environment`.

    Raises:
        BadConfig: the environment does not have what the hub needs.
        BadKey: a key of `lti_keys` cannot be used.
    """
    has_lms = bool(config.lms)
    return Issuers(
        verifier=oidc.Verifier(address, config.ci) if config.ci else None,
        hub=hub.from_environment(environment, address, config.hub, has_lms) if config.hub else None,
        lms={each.issuer: each for each in config.lms},
        keys=Keys(config.lti_keys) if has_lms else None,
    )
