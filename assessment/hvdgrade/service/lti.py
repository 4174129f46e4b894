"""Scores for a learning platform (LMS), by LTI 1.3 Assignment and Grade Services.

The LMS sends people to JupyterHub, whose ltiauthenticator checks the launch. `read_launch` reads the claims
that the hub stored. `Scores` sends a score: the service signs a client assertion with its own key, gets an
access token for it, and posts the score to the line item (the column of the gradebook) that the launch named.

Sources: https://www.imsglobal.org/spec/lti-ags/v2p0 and https://www.imsglobal.org/spec/security/v1p0
"""

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from hvdgrade import HvdgradeError
from hvdgrade.service.outgoing import Answer, NoAnswer, ask

SCORE = "https://purl.imsglobal.org/spec/lti-ags/scope/score"
CLAIM = "https://purl.imsglobal.org/spec/lti/claim/"
SERVICE = "https://purl.imsglobal.org/spec/lti-ags/claim/endpoint"
MEDIA_TYPE = "application/vnd.ims.lis.v1.score+json"
ASSERTION_S, TOKEN_S, MARGIN_S = 300, 3600, 60


class BadKey(HvdgradeError):
    """A key of the service cannot be used. The message says why and what to do, in one sentence."""


class Keys:
    """The RSA keys of the service. The first one signs; the LMS may get the public part of each.

    To change the key, name a new file before the old one, wait until the LMS has read `/jwks` again (a day),
    and then remove the old one.

    Args:
        files: PEM files that only their owner may read. The first one is made if it does not exist.

    Raises:
        BadKey: a file is missing, not an RSA key of 2048 bits or more, or other users may read it.
    """

    def __init__(self, files: Sequence[Path]):
        if not files[0].exists():
            _make(files[0])
        self._keys = {_number(key): key for key in map(_read, files)}

    def jwks(self) -> dict[str, Any]:
        """Return the public keys as a JSON Web Key Set."""
        return {"keys": [_public(key) | {"kid": kid} for kid, key in self._keys.items()]}

    def assertion(self, client: str, audience: str) -> str:
        """Return a signed statement, valid for five minutes, that this is the client of the LMS."""
        now = int(time.time())
        claims = {"iss": client, "sub": client, "aud": audience, "jti": secrets.token_urlsafe(16)}
        claims |= {"iat": now, "exp": now + ASSERTION_S}
        kid, key = next(iter(self._keys.items()))
        return jwt.encode(claims, key, "RS256", {"kid": kid})


def _make(path: Path) -> None:
    """Write a new key that only its owner may read."""
    secret = generate_private_key(65537, 3072).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        path.touch(mode=0o600, exist_ok=False)
        path.write_bytes(secret)
    except OSError as error:
        raise BadKey(f"the LTI key {path} cannot be written: {error.strerror}.") from None


def _read(path: Path) -> RSAPrivateKey:
    try:
        if path.stat().st_mode & 0o077:
            raise BadKey(f"other users may use the LTI key {path}: chmod 600 {path}")
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise BadKey(f"the LTI key {path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey) or key.key_size < 2048:
        raise BadKey(
            f"{path} must be a PEM file with an RSA key of 2048 bits or more, not encrypted."
        )
    return key


def _public(key: RSAPrivateKey) -> dict[str, Any]:
    public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {"kty": "RSA", "use": "sig", "alg": "RS256", "n": public["n"], "e": public["e"]}


def _number(key: RSAPrivateKey) -> str:
    """Return the id of a key: its thumbprint (RFC 7638), so that it is the same after each start."""
    public = {name: _public(key)[name] for name in ("e", "kty", "n")}
    text = json.dumps(public, separators=(",", ":"))
    return jwt.utils.base64url_encode(hashlib.sha256(text.encode()).digest()).decode()


# --- what a launch says ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """What the LMS said of a person who came from it."""

    issuer: str
    subject: str
    client: str
    name: str
    email: str
    slug: str | None  # assignment that the link of the LMS names
    line_item: str | None  # address of the gradebook's column, if scores may be sent there


def read_launch(claims: Any) -> Launch | None:
    """Return what the claims of a launch say, or None if they are those of another login.

    The link of the LMS names the assignment by the end of its address, `/launch/SLUG`, or by its custom
    parameter `assignment`.
    """
    if not isinstance(claims, Mapping) or claims.get(f"{CLAIM}version") != "1.3.0":
        return None
    audience, issuer, subject = claims.get("azp"), claims.get("iss"), claims.get("sub")
    audience = audience or claims.get("aud")
    client = audience[0] if isinstance(audience, list) and audience else audience
    if not all(isinstance(text, str) and text for text in (issuer, subject, client)):
        return None  # an anonymous launch
    service = _mapping(claims.get(SERVICE))
    may_score = SCORE in (service.get("scope") or ())
    line_item = service.get("lineitem")
    return Launch(
        issuer=issuer,
        subject=subject,
        client=client,
        name=str(claims.get("name") or ""),
        email=str(claims.get("email") or "").lower(),
        slug=_slug(claims),
        line_item=line_item if may_score and isinstance(line_item, str) else None,
    )


def _slug(claims: Mapping[str, Any]) -> str | None:
    custom = _mapping(claims.get(f"{CLAIM}custom")).get("assignment")
    if isinstance(custom, str) and custom:
        return custom
    parts = urlsplit(str(claims.get(f"{CLAIM}target_link_uri", ""))).path.rstrip("/").split("/")
    return parts[-1] if parts[-2:-1] == ["launch"] else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- scores -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """Where a score goes: the address of a line item, and what proves to its LMS that we may post there."""

    line_item: str
    client: str
    token_url: str
    audience: str  # of the client assertion, mostly `token_url` itself

    def scores_url(self) -> str:
        """Return where scores are posted. Moodle's line items have a query, which stays at the end."""
        parts = urlsplit(self.line_item)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/scores"))


class Scores:
    """Sends scores, and keeps access tokens for as long as the LMS says. Safe for several threads."""

    def __init__(self, keys: Keys):
        self.keys = keys
        self._tokens: dict[Target, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def send(self, target: Target, score: Mapping[str, Any]) -> Answer:
        """Send a score; return the answer of the LMS, or the one with which it refused an access token.

        Raises:
            NoAnswer: the LMS cannot be reached, or gives an answer that cannot be read.
        """
        for _ in range(2):  # the LMS may have forgotten a token
            token = self._token(target)
            if isinstance(token, Answer):
                return token
            headers = {"Authorization": f"Bearer {token}", "Content-Type": MEDIA_TYPE}
            answer = ask("POST", target.scores_url(), headers=headers, content=json.dumps(score))
            if answer.status != 401:
                break
            with self._lock:
                self._tokens.pop(target, None)
        return answer

    def _token(self, target: Target) -> str | Answer:
        with self._lock:
            token, ends = self._tokens.get(target, ("", 0.0))
        if time.monotonic() < ends:
            return token
        form = {
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": self.keys.assertion(target.client, target.audience),
            "scope": SCORE,
        }
        answer = ask("POST", target.token_url, data=form)
        if answer.status != 200:
            return answer
        document = answer.document()
        token, life = document.get("access_token"), document.get("expires_in", TOKEN_S)
        if not isinstance(token, str) or not isinstance(life, int | float):
            raise NoAnswer(f"{target.token_url} gave no access token.")
        with self._lock:
            self._tokens[target] = (token, time.monotonic() + life - MARGIN_S)
        return token
