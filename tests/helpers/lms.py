"""A learning platform (LMS) that is as strict as LTI 1.3 allows, as a real HTTP server.

It sends people to a tool (OpenID Connect, signed launches), and takes scores: it believes a client assertion
only with the tool's published key, once, for its own token address; and a score only with a fresh access
token, with all required fields, for a user that it knows, and newer than the last one (else 409).
"""

import contextlib
import datetime
import html
import json
import secrets
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from local_server import Request, serving

SCORE = "https://purl.imsglobal.org/spec/lti-ags/scope/score"
CLAIM = "https://purl.imsglobal.org/spec/lti/claim/"
FIELDS = {"userId", "timestamp", "activityProgress", "gradingProgress", "comment"}
TOKEN_S = 3600


class Refused(Exception):
    pass


class Lms:
    key = rsa.generate_private_key(65537, 2048)

    def __init__(self, users=(), client="client-1", audience=None):
        self.users, self.client, self.audience = dict(users), client, audience
        self.tool_keys: Callable[[], dict] = dict  # returns the tool's JSON Web Key Set
        self.tokens, self.assertions, self.tokens_given = {}, set(), 0
        self.scores: dict[tuple[str, str], list[dict]] = {}  # accepted, by line item and user
        self.refused: list[tuple[int, str]] = []
        self.seen: list[tuple[str, str]] = []  # user and timestamp of each score that arrived
        self.trouble: list = []  # what the next requests for scores get: a status, or "break"
        self.token_trouble: list = []
        self.launches: dict[str, dict] = {}
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def serving(self) -> Iterator["Lms"]:
        with serving(self._answer) as self.url:
            yield self

    def line_item(self, name="1") -> str:
        """The address of a column, with a query as in Moodle."""
        return f"{self.url}/items/{name}/lineitem?type_id=1"

    def score_of(self, user, item="1") -> float | None:
        found = self.scores.get((item, user))
        return found[-1].get("scoreGiven") if found else None

    # --- requests ------------------------------------------------------------------------------

    def _answer(self, request: Request, connection):
        path, _, query = request.path.partition("?")
        with self.lock:
            trouble = self.token_trouble if path == "/token" else self.trouble
            now_wrong = trouble.pop(0) if trouble and request.method == "POST" else None
        if now_wrong == "break":
            connection.connection.close()
            return None
        if now_wrong:
            return now_wrong, {}, f"trouble {now_wrong}".encode()
        try:
            if path == "/jwks":
                return _json(self._jwks())
            if path == "/authorize":
                return self._authorize(dict(urllib.parse.parse_qsl(query)))
            if path == "/token":
                return self._token(dict(urllib.parse.parse_qsl(request.body.decode())))
            return self._score(request, path, query)
        except Refused as error:
            status, words = error.args
            self.refused.append((status, words))
            return (
                status,
                {"Content-Type": "application/json"},
                json.dumps({"error": words}).encode(),
            )

    def _token(self, form):
        if form.get("grant_type") != "client_credentials":
            raise Refused(400, "unsupported_grant_type")
        kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        if form.get("client_assertion_type") != kind or form.get("scope") != SCORE:
            raise Refused(400, "invalid_scope")
        assertion = form["client_assertion"]
        keys = {key.key_id: key.key for key in jwt.PyJWKSet.from_dict(self.tool_keys()).keys}
        try:
            claims = jwt.decode(
                assertion,
                keys[jwt.get_unverified_header(assertion)["kid"]],
                algorithms=["RS256"],
                audience=self.audience or f"{self.url}/token",
                issuer=self.client,
                options={"require": ["iss", "sub", "aud", "iat", "exp", "jti"]},
            )
        except (jwt.PyJWTError, KeyError) as error:
            raise Refused(400, f"invalid_client: {error}") from None
        with self.lock:
            if claims["sub"] != self.client or claims["jti"] in self.assertions:
                raise Refused(400, "invalid_client: used before")
            self.assertions.add(claims["jti"])
            token = secrets.token_urlsafe()
            self.tokens[token] = time.time() + TOKEN_S
            self.tokens_given += 1
        return _json({"access_token": token, "token_type": "bearer", "expires_in": TOKEN_S})

    def _score(self, request: Request, path, query):
        parts = path.split("/")
        if request.method != "POST" or parts[1] != "items" or parts[3:] != ["lineitem", "scores"]:
            raise Refused(404, "no such service")
        if query != "type_id=1":
            raise Refused(404, "no such type")
        if request.headers["Content-Type"] != "application/vnd.ims.lis.v1.score+json":
            raise Refused(415, "not a score")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens.get(token, 0) < time.time():
            raise Refused(401, "invalid_token")
        score = json.loads(request.body)
        if not score.keys() >= FIELDS or ("scoreGiven" in score) != ("scoreMaximum" in score):
            raise Refused(400, "a field is missing")
        if score["userId"] not in self.users:
            raise Refused(404, f"User {score['userId']} is not enrolled")
        moment = datetime.datetime.fromisoformat(score["timestamp"])
        with self.lock:
            self.seen.append((score["userId"], score["timestamp"]))
            before = self.scores.setdefault((parts[2], score["userId"]), [])
            if before and moment <= datetime.datetime.fromisoformat(before[-1]["timestamp"]):
                raise Refused(409, "there is a newer score")
            before.append(score)
        return 200, {}, b""

    # --- launches -------------------------------------------------------------------------------

    def login_url(self, tool_login, user, target, item: str | None = "1", custom=None) -> str:
        """Return where a browser begins when `user` opens a link of the LMS; it has a column `item`."""
        hint = secrets.token_hex(8)
        self.launches[hint] = {"user": user, "target": target, "item": item, "custom": custom}
        query = {
            "iss": self.url,
            "login_hint": hint,
            "target_link_uri": target,
            "client_id": self.client,
        }
        return f"{tool_login}?{urllib.parse.urlencode(query)}"

    def _authorize(self, query):
        launch = self.launches.get(query.get("login_hint"))
        if launch is None or query.get("client_id") != self.client:
            raise Refused(400, "unknown launch")
        now = int(time.time())
        claims = {
            "iss": self.url, "aud": self.client, "sub": launch["user"], "iat": now, "exp": now + 300,
            "nonce": query["nonce"], "name": self.users[launch["user"]],
            "email": f"{launch['user']}@example.edu",
            f"{CLAIM}version": "1.3.0", f"{CLAIM}message_type": "LtiResourceLinkRequest",
            f"{CLAIM}deployment_id": "d-1", f"{CLAIM}target_link_uri": launch["target"],
            f"{CLAIM}roles": ["http://purl.imsglobal.org/vocab/lis/v2/membership#Learner"],
            f"{CLAIM}resource_link": {"id": f"link-{launch['item']}"},
            f"{CLAIM}context": {"id": "c-1", "label": "ML"},
        }  # fmt: skip
        if launch["custom"]:
            claims[f"{CLAIM}custom"] = launch["custom"]
        if launch["item"]:
            claims["https://purl.imsglobal.org/spec/lti-ags/claim/endpoint"] = {
                "scope": [SCORE], "lineitem": self.line_item(launch["item"]),
            }  # fmt: skip
        token = jwt.encode(claims, self.key, "RS256", {"kid": "lms"})
        fields = {"id_token": token, "state": query["state"]}
        inputs = "".join(f'<input name="{k}" value="{html.escape(v)}">' for k, v in fields.items())
        page = f'<form method="post" action="{html.escape(query["redirect_uri"])}">{inputs}</form>'
        page += "<script>document.forms[0].submit()</script>"
        return 200, {"Content-Type": "text/html"}, page.encode()

    def _jwks(self) -> dict:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [public | {"kid": "lms", "alg": "RS256", "use": "sig"}]}


def _json(document):
    return 200, {"Content-Type": "application/json"}, json.dumps(document).encode()
