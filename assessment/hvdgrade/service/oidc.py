"""The identity tokens of GitHub Actions and GitLab CI, so that no secret lies in a repository.

A job asks its platform for a token whose audience is this server, and sends it as bearer token. The token is
believed if one of the configured issuers signed it (RS256), for this server, for a repository of the pinned
owner, and if it is valid now. It lets the job hand in and read what it handed in, nothing else.

Sources: https://docs.github.com/en/actions/reference/security/oidc and
https://docs.gitlab.com/ci/secrets/id_token_authentication/
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import jwt
import pydantic.dataclasses

from hvdgrade.service.outgoing import NoAnswer, ask

MOST_CHARACTERS = 16 * 1024  # a token of GitHub has about 1,500
LEEWAY = 30.0  # seconds by which two clocks may differ
OLDEST = 24 * 3600.0  # seconds since a token was issued
FETCH_PAUSE = 60.0  # seconds between two requests for the keys of one issuer
KEYS_SECONDS = 5.0
GITHUB, GITLAB = "github", "gitlab"
KEYS = {GITHUB: "/.well-known/jwks", GITLAB: "/oauth/discovery/keys"}


class BadToken(Exception):
    """A token is not believed. The text is one sentence for the person whose job sent it."""


@dataclass(frozen=True)
class Claimed:
    """Who a token names: rows of the table `identity` have `issuer` and one of `subjects`."""

    issuer: str
    subjects: tuple[str, ...]  # names as the platform writes them, and in lower case


@pydantic.dataclasses.dataclass(frozen=True, config={"extra": "forbid"})
class Issuer:
    """A platform whose tokens are believed: a table [[ci]] of the configuration.

    Attributes:
        owner: GitHub: the number of the organization (`repository_owner_id`). GitLab: the group that holds
            the projects, or "" for each project of that GitLab.
    """

    kind: str  # "github" or "gitlab"
    issuer: str  # what its tokens have as `iss`, for example "https://token.actions.githubusercontent.com"
    owner: str = ""

    def __post_init__(self):
        """Refuse an issuer that would believe more than was meant."""
        if self.kind not in KEYS:
            raise ValueError(f"kind must be one of {', '.join(KEYS)}. Received: {self.kind}")
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1"):
            raise ValueError(f"issuer must begin with https://. Received: {self.issuer}")
        if self.kind == GITHUB and not (self.owner.isascii() and self.owner.isdigit()):
            raise ValueError(
                "owner must be the number of the GitHub organization, which "
                f"https://api.github.com/orgs/NAME shows as id. Received: {self.owner!r}"
            )

    def claimed(self, claims: Mapping[str, Any]) -> Claimed:
        """Return who the claims of a token name, or raise BadToken: another owner, or nobody."""
        if self.kind == GITHUB:
            self._require(str(claims.get("repository_owner_id")) == self.owner, claims)
            subjects = [claims.get("repository_id"), claims.get("repository")]
            platform = f"{GITHUB}:{self.owner}"
        else:
            group = f"{claims.get('namespace_path', '')}/".lower()
            self._require(not self.owner or group.startswith(f"{self.owner.lower()}/"), claims)
            subjects = [claims.get("user_login")]
            platform = f"{GITLAB}:{urlsplit(self.issuer).netloc}"
        texts = [str(subject) for subject in subjects if subject]
        known = tuple(dict.fromkeys([*texts, *map(str.lower, texts)]))
        if not known:
            raise BadToken(f"The token of {self.issuer} names no {self.kind} repository or user.")
        return Claimed(platform, known)

    def _require(self, right: bool, claims: Mapping[str, Any]) -> None:
        """Refuse the token of another owner."""
        if not right:
            name = claims.get("repository") or claims.get("project_path")
            raise BadToken(
                f"{name} does not belong to {self.owner}, the owner that may hand in here."
            )


class Keys(jwt.PyJWKClient):
    """The public keys of one issuer, requested at most once a minute, also while it gives no answer.

    A key that the issuer withdraws is forgotten after a day.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic):
        super().__init__(url, lifespan=OLDEST, cooldown_duration=0)
        self._clock, self._requested = clock, -math.inf

    def fetch_data(self) -> Any:
        """Return the keys as the issuer sends them."""
        if self._clock() - self._requested < FETCH_PAUSE:
            raise jwt.PyJWKClientError("the last request is less than a minute ago")
        self._requested = self._clock()
        answer = ask("GET", self.uri, KEYS_SECONDS)
        return answer.document() if answer.status == 200 else None

    def get(self, number: str) -> jwt.PyJWK | None:
        """Return the RSA key with this id (`kid`), or None."""
        try:
            key = self.get_signing_key(number)
        except (NoAnswer, jwt.PyJWTError, AttributeError, TypeError, ValueError):
            return None
        return key if key.key_type == "RSA" else None


class Verifier:
    """Decides which tokens are believed.

    Args:
        audience: address of this server, which a token must name as its audience.
        issuers: all platforms whose tokens are believed; several may have one address, with other owners.
    """

    def __init__(self, audience: str, issuers: Sequence[Issuer]):
        self.audience, self.issuers = audience, issuers
        self._keys = {i.issuer: Keys(i.issuer.rstrip("/") + KEYS[i.kind]) for i in issuers}

    def claimed(self, token: str) -> Claimed:
        """Return who a token names, or raise BadToken."""
        if len(token) > MOST_CHARACTERS:
            raise BadToken(f"The token is longer than {MOST_CHARACTERS} characters.")
        try:
            header = jwt.get_unverified_header(token)
            url = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise BadToken("The token is not a signed token of a CI.") from None
        if not isinstance(url, str) or url not in self._keys:
            raise BadToken("No token of this issuer is accepted here.")
        if header.get("alg") != "RS256" or not isinstance(header.get("kid"), str):
            raise BadToken("The token must be signed with RS256 and name its key.")
        key = self._keys[url].get(header["kid"])
        if key is None:
            raise BadToken(f"{url} has no key with the id that the token names.")
        return self._of_an_owner(url, self._claims(token, key, url))

    def _claims(self, token: str, key: Any, url: str) -> dict[str, Any]:
        """Return the claims of a token whose signature, audience and times are right."""
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=["RS256"],
                audience=self.audience,
                issuer=url,
                leeway=LEEWAY,
                options={"require": ["exp", "iat", "aud", "iss", "sub"], "strict_aud": False},
            )
        except jwt.InvalidAudienceError:
            raise BadToken(
                f"The token is for another server: request one for {self.audience}."
            ) from None
        except jwt.ExpiredSignatureError:
            raise BadToken("The token has expired: request a new one.") from None
        except jwt.PyJWTError as error:
            raise BadToken(f"The token is not valid: {error}.") from None
        if time.time() - claims["iat"] > OLDEST:
            raise BadToken("The token is older than a day: request a new one.")
        return claims

    def _of_an_owner(self, url: str, claims: dict[str, Any]) -> Claimed:
        """Return who the claims name, for the first owner of that issuer to whom they belong."""
        refusal = None
        for issuer in self.issuers:
            if issuer.issuer == url:
                try:
                    return issuer.claimed(claims)
                except BadToken as error:
                    refusal = error
        raise refusal


def is_token(bearer: str) -> bool:
    """Return whether a bearer token has the form of a signed token, which our own tokens have not."""
    return bearer.count(".") == 2
