"""JupyterHub as the login of the service.

A browser is sent to the hub, which names its user (OAuth 2 with PKCE); JupyterLab sends the token of its own
server. Either way the hub says who it is, in which groups, and whether the token may be used here. Where the
hub's users come from an LMS, the service reads the claims of their last launch from the hub's `auth_state`.

Source: https://jupyterhub.readthedocs.io/en/stable/howto/configuration/config-user-env.html and
https://jupyterhub.readthedocs.io/en/stable/reference/rest-api.html
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from hvdgrade.service import people
from hvdgrade.service.configuration import BadConfig, HubTable
from hvdgrade.service.lti import Launch, read_launch
from hvdgrade.service.models import INSTRUCTOR, LEARNER, TA, Course, Member
from hvdgrade.service.outgoing import NoAnswer, ask

ISSUER, DOOR = "hub", "jupyterlab"
AWAY = "JupyterHub cannot be reached at the moment. Try again."


@dataclass(frozen=True)
class User:
    """What the hub says of the owner of a token."""

    name: str
    groups: frozenset[str]


@dataclass
class Hub:
    """A JupyterHub, and what its groups mean in one course. If it does not answer, the caller gets 503."""

    api: str  # for example "http://127.0.0.1:8081/hub/api"
    token: str = field(repr=False)  # the service's own
    client: str  # of OAuth, for example "service-hvdgrade"
    public: str  # address for browsers, which ends with "/hub"
    callback: str  # to which the hub sends browsers back, as its configuration has it
    scopes: frozenset[str]  # a token must have one of these to be used here
    table: HubTable
    reads_launches: bool = False  # whether `auth_state` holds launches of an LMS

    def authorize_url(self, state: str, verifier: str) -> str:
        """Return where a browser proves to the hub who it is.

        Args:
            verifier: secret of this login (RFC 7636), which `user_of_code` needs.
        """
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = {
            "client_id": self.client,
            "redirect_uri": self.callback,
            "response_type": "code",
            "state": state,
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return f"{self.public}/api/oauth2/authorize?{urlencode(query)}"

    def user_of_code(self, code: str, verifier: str) -> User | None:
        """Return who came back from the hub with a code; None if the code is not valid."""
        form = {
            "client_id": self.client,
            "client_secret": self.token,
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": verifier,
            "redirect_uri": self.callback,
        }
        document = self._document("POST", "oauth2/token", data=form)
        token = document and document.get("access_token")
        return self.user_of_token(token) if isinstance(token, str) else None

    def user_of_token(self, token: str) -> User | None:
        """Return the user whose token this is; None if it is not valid, or not meant for this service."""
        if not token.isascii():
            return None
        document = self._document("GET", "user", token)
        if not document or document.get("kind") != "user":
            return None
        if not self.scopes & set(document.get("scopes") or ()):
            return None
        return User(document["name"], frozenset(document.get("groups") or ()))

    def launch_of(self, user: User) -> Launch | None:
        """Return the last launch of a user; None if there is none."""
        if not self.reads_launches:
            return None
        document = self._document("GET", f"users/{quote(user.name, safe='')}")
        return read_launch(document.get("auth_state")) if document else None

    def role_of(self, user: User) -> str | None:
        """Return the role of a user in the course; None if the groups give none."""
        for role, groups in ((INSTRUCTOR, self.table.instructors), (TA, self.table.tas)):
            if user.groups & groups:
                return role
        learners = self.table.learners
        return LEARNER if not learners or user.groups & learners else None

    def _document(
        self, method: str, path: str, token: str = "", **request: Any
    ) -> dict[str, Any] | None:
        """Return what the hub answers; None if it refuses."""
        headers = {"Authorization": f"token {token or self.token}"}
        try:
            answer = ask(method, f"{self.api}/{path}", headers=headers, **request)
            if answer.status < 300:
                return answer.document()
            if answer.status < 500:
                return None
        except NoAnswer:
            pass
        raise HTTPException(503, AWAY, {"Retry-After": "5"})


def from_environment(
    environment: Mapping[str, str], address: str, table: HubTable, reads_launches: bool
) -> Hub:
    """Return the hub that the variables of a service of JupyterHub name.

    Args:
        environment: has JUPYTERHUB_API_TOKEN, JUPYTERHUB_API_URL and JUPYTERHUB_CLIENT_ID. The hub sets them
            for a service that it starts itself.
        address: of this server.

    Raises:
        BadConfig: a variable or the address of the hub is missing.
    """
    names = [f"JUPYTERHUB_{name}" for name in ("API_TOKEN", "API_URL", "CLIENT_ID")]
    if missing := [name for name in names if not environment.get(name)]:
        raise BadConfig(f"[hub] needs the environment variables {', '.join(missing)} of the hub.")
    host = environment.get("JUPYTERHUB_HOST", "") + environment.get("JUPYTERHUB_BASE_URL", "/")
    public = table.url or environment.get("JUPYTERHUB_PUBLIC_HUB_URL") or f"{host}hub"
    prefix = environment.get("JUPYTERHUB_SERVICE_PREFIX", "").rstrip("/")
    same_domain = prefix and urlsplit(address).path == prefix
    if not same_domain and not public.startswith(("https://", "http://")):
        raise BadConfig('[hub] needs the hub\'s address, as url = "https://hub.example.edu/hub".')
    client = environment[names[2]]
    name = environment.get("JUPYTERHUB_SERVICE_NAME") or client.removeprefix("service-")
    scopes = environment.get("JUPYTERHUB_OAUTH_ACCESS_SCOPES")
    return Hub(
        api=environment[names[1]].rstrip("/"),
        token=environment[names[0]],
        client=client,
        public=public.rstrip("/"),
        callback=f"{address}/oauth_callback",
        scopes=frozenset(json.loads(scopes) if scopes else [f"access:services!service={name}"])
        | {"access:services"},
        table=table,
        reads_launches=reads_launches,
    )


def admit(session: Session, hub: Hub, user: User, launch: Launch | None) -> int:
    """Return the person that a user of the hub is, with the role that the hub's groups give.

    Somebody who is new becomes a member of the course, under the name that the LMS has for them.
    """
    table = hub.table
    course = session.query(Course).filter_by(slug=table.course).one_or_none()
    if course is None:
        raise HTTPException(403, f"The hub's course {table.course} does not exist here yet.")
    subjects = [(ISSUER, user.name), *([(launch.issuer, launch.subject)] if launch else [])]
    name, email = (launch.name, launch.email) if launch else ("", "")
    person = people.find_or_add(session, subjects, name or user.name, email)
    member, role = session.get(Member, (course.id, person)), hub.role_of(user)
    if member is None and role:
        session.add(Member(course_id=course.id, person_id=person, role=role))
    elif member and (role != LEARNER or table.tas or table.instructors):
        member.role = role or LEARNER
    session.flush()
    return person
