"""Tokens of GitHub Actions and GitLab CI: real keys, a real server of keys, one good token each, forged ones.

The claims are those of tokens that the two platforms show in their documentation.
"""

import base64
import hashlib
import hmac
import json
import threading
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from local_server import serving

from hvdgrade.service import oidc, outgoing
from hvdgrade.service.oidc import BadToken, Claimed, Issuer, Keys, Verifier

pytestmark = pytest.mark.slow  # each test starts a server
HERE = "https://grade.example.edu"
OWNER = "65"
KEY, STRANGER = (rsa.generate_private_key(65537, 2048) for _ in range(2))
CURVE = ec.generate_private_key(ec.SECP256R1())
PEM = KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def public(key, number) -> dict:
    algorithm = jwt.algorithms.ECAlgorithm if key is CURVE else jwt.algorithms.RSAAlgorithm
    return json.loads(algorithm.to_jwk(key.public_key())) | {"kid": number, "use": "sig"}


class Platform:
    """A server of keys that counts how often it is asked."""

    def __init__(self):
        self.keys = [public(CURVE, "curve"), public(KEY, "key-1")]
        self.asked = []

    def answer(self, request, _):
        self.asked.append(request.path)
        return 200, {"Content-Type": "application/json"}, json.dumps({"keys": self.keys}).encode()


@pytest.fixture
def platform():
    platform = Platform()
    with serving(platform.answer) as platform.url:
        yield platform


@pytest.fixture
def verifier(platform):
    """One platform plays both: its address ends with the name."""
    return Verifier(
        HERE,
        [
            Issuer("github", f"{platform.url}/github", OWNER),
            Issuer("gitlab", f"{platform.url}/gitlab", "course"),
        ],
    )


def github(platform, **changes) -> dict:
    now = int(time.time())
    return {
        "iss": f"{platform.url}/github",
        "aud": HERE,
        "sub": "repo:octo-org/hw1-ada:ref:refs/heads/main",
        "repository": "Octo-Org/hw1-ada",
        "repository_id": "74",
        "repository_owner": "Octo-Org",
        "repository_owner_id": OWNER,
        "actor": "ada",
        "iat": now,
        "nbf": now - 300,
        "exp": now + 300,
    } | changes


def gitlab(platform, **changes) -> dict:
    now = int(time.time())
    return {
        "iss": f"{platform.url}/gitlab",
        "aud": HERE,
        "sub": "project_path:course/ada/hw1:ref_type:branch:ref:main",
        "namespace_path": "course/ada",
        "project_path": "course/ada/hw1",
        "user_login": "Ada",
        "iat": now,
        "nbf": now - 5,
        "exp": now + 3600,
    } | changes


def sign(claims, key=KEY, algorithm="RS256", kid="key-1", **headers) -> str:
    return jwt.encode(claims, key, algorithm, headers | ({"kid": kid} if kid else {}))


def by_hand(claims, header, signature) -> str:
    """Return a token that a library would refuse to make."""
    parts = [_encoded(json.dumps(header).encode()), _encoded(json.dumps(claims).encode())]
    return ".".join([*parts, _encoded(signature(".".join(parts).encode()))])


def _encoded(data) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_believes_a_good_token_of_each_platform(platform, verifier):
    assert verifier.claimed(sign(github(platform))) == Claimed(
        "github:65", ("74", "Octo-Org/hw1-ada", "octo-org/hw1-ada")
    )
    host = platform.url.removeprefix("http://")
    assert verifier.claimed(sign(gitlab(platform))) == Claimed(f"gitlab:{host}", ("Ada", "ada"))
    verifier.claimed(sign(github(platform, aud=["https://other", HERE])))
    assert platform.asked == ["/github/.well-known/jwks", "/gitlab/oauth/discovery/keys"]


FORGED = {
    "wrong key": (lambda p: sign(github(p), STRANGER), "Signature verification failed"),
    "alg none": (lambda p: sign(github(p), None, "none"), "RS256"),
    "alg none, unsigned by hand": (
        lambda p: by_hand(github(p), {"alg": "none", "kid": "key-1"}, lambda _: b""),
        "RS256",
    ),
    "HS256 with the public key": (
        lambda p: by_hand(
            github(p),
            {"alg": "HS256", "kid": "key-1"},
            lambda text: hmac.digest(PEM, text, hashlib.sha256),
        ),
        "RS256",
    ),
    "RS512": (lambda p: sign(github(p), algorithm="RS512"), "RS256"),
    "ES256 of a published key": (lambda p: sign(github(p), CURVE, "ES256", "curve"), "RS256"),
    "RS256 that names a key of a curve": (lambda p: sign(github(p), kid="curve"), "no key"),
    "no kid": (lambda p: sign(github(p), kid=None), "name its key"),
    "kid that is no text": (
        lambda p: by_hand(github(p), {"alg": "RS256", "kid": ["key-1"]}, lambda _: b"x"),
        "not a signed token",
    ),
    "unknown kid": (lambda p: sign(github(p), STRANGER, kid="mine"), "no key"),
    "key in the token": (
        lambda p: sign(github(p), STRANGER, jwk=public(STRANGER, "key-1")),
        "Signature verification failed",
    ),
    "expired": (lambda p: sign(github(p, exp=int(time.time()) - 60)), "expired"),
    "no exp": (lambda p: sign({k: v for k, v in github(p).items() if k != "exp"}), "exp"),
    "no iat": (lambda p: sign({k: v for k, v in github(p).items() if k != "iat"}), "iat"),
    "issued in the future": (
        lambda p: sign(github(p, iat=int(time.time()) + 300)),
        "not yet valid",
    ),
    "not yet valid": (lambda p: sign(github(p, nbf=int(time.time()) + 300)), "not yet valid"),
    "too old": (lambda p: sign(github(p, iat=int(time.time()) - 90_000)), "older than a day"),
    "other audience": (lambda p: sign(github(p, aud="https://other.edu")), "another server"),
    "no audience": (lambda p: sign({k: v for k, v in github(p).items() if k != "aud"}), "aud"),
    "other issuer": (lambda p: sign(github(p, iss="https://evil.example")), "issuer"),
    "issuer that is no text": (
        lambda p: by_hand(github(p, iss=[p.url]), {"alg": "RS256", "kid": "key-1"}, lambda _: b"x"),
        "issuer",
    ),
    "other owner": (lambda p: sign(github(p, repository_owner_id="66")), "does not belong to 65"),
    "no owner": (lambda p: sign(github(p, repository_owner_id=None)), "does not belong to 65"),
    "other group": (
        lambda p: sign(gitlab(p, namespace_path="course-x", project_path="course-x/hw1")),
        "does not belong to course",
    ),
    "no user": (lambda p: sign(gitlab(p, user_login="")), "names no gitlab"),
    "claims of GitHub from GitLab": (
        lambda p: sign(github(p, iss=f"{p.url}/gitlab")),
        "does not belong to course",
    ),
    "huge": (lambda p: sign(github(p, ref="x" * 20_000)), "longer than 16384"),
    "no token": (lambda _: "a.b.c", "not a signed token"),
    "claims that are a list": (
        lambda _: by_hand([], {"alg": "RS256", "kid": "key-1"}, lambda _: b"x"),
        "not a signed token",
    ),
    "changed after it was signed": (
        lambda p: _changed(sign(github(p)), repository_id="75"),
        "Signature verification failed",
    ),
}


def _changed(token, **changes) -> str:
    header, claims, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(claims + "==")) | changes
    return ".".join([header, _encoded(json.dumps(claims).encode()), signature])


@pytest.mark.parametrize("name", FORGED)
def test_refuses_a_forged_token(platform, verifier, name):
    make, reason = FORGED[name]
    with pytest.raises(BadToken, match=reason):
        verifier.claimed(make(platform))


def test_asks_at_most_once_a_minute_for_unknown_keys(platform):
    now = [1000.0]
    keys = Keys(f"{platform.url}/keys", clock=lambda: now[0])
    threads = [threading.Thread(target=keys.get, args=(f"mine-{n}",)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(platform.asked) == 1 and keys.get("key-1") is not None
    platform.keys = [public(STRANGER, "key-2")]  # the platform changes its key
    assert keys.get("key-2") is None and len(platform.asked) == 1
    now[0] += oidc.FETCH_PAUSE
    assert keys.get("key-2") is not None and len(platform.asked) == 2
    assert keys.get("key-1") is None  # withdrawn, and not asked for again within the minute
    assert len(platform.asked) == 2


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"no", b'{"keys": [1]}', b'{"keys": [{"kid": "a"}]}']
)
def test_keeps_its_keys_where_the_platform_answers_nonsense(platform, body):
    now = [0.0]
    answers = [
        platform.answer,
        lambda *_: (200, {}, body),
        lambda *_: (500, {}, b""),
        lambda *_: None,
    ]
    with serving(lambda request, connection: answers[0](request, connection)) as url:
        keys = Keys(url, clock=lambda: now[0])
        assert keys.get("key-1") is not None
        for answer in answers[1:]:
            answers[0] = answer
            now[0] += 100
            assert keys.get("new") is None and keys.get("key-1") is not None


def test_reads_no_endless_answer(monkeypatch):
    """One sends without end, one slowly: both are given up, and nothing is read beyond the limit."""
    sent = []

    def endless(_, connection):
        connection.send_response(200)
        connection.end_headers()
        try:
            while True:
                connection.wfile.write(b" " * 65536)
                sent.append(65536)
        except OSError:
            return None

    with serving(endless) as url, pytest.raises(outgoing.NoAnswer, match="more than 262144 bytes"):
        outgoing.ask("GET", url)
    assert sum(sent) < 50 * outgoing.MOST_BYTES

    gone = threading.Event()

    def slow(_, connection):
        connection.send_response(200)
        connection.end_headers()
        while not gone.wait(0.05):
            connection.wfile.write(b" ")

    with serving(slow) as url:
        with pytest.raises(outgoing.NoAnswer, match="longer than 0.5 s"):
            outgoing.ask("GET", url, 0.5)
        gone.set()


def test_follows_no_redirect(platform):
    with serving(lambda *_: (302, {"Location": platform.url}, b"")) as url:
        assert Keys(url).get("key-1") is None
    assert platform.asked == []


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("bitbucket", "https://x"), "kind must be one of github, gitlab"),
        (
            ("github", "https://token.actions.githubusercontent.com", "octo-org"),
            "must be the number",
        ),
        (("github", "https://token.actions.githubusercontent.com"), "must be the number"),
        (("gitlab", "http://gitlab.example.edu"), "must begin with https"),
    ],
)
def test_refuses_an_issuer_that_would_believe_too_much(arguments, words):
    with pytest.raises(ValueError, match=words):
        Issuer(*arguments)
