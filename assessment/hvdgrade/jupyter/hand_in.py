"""The button *Hand in*: send a script to the service of the course, as the user of this server.

    GET   hvdgrade/handin   {"page"}: address of the assignment's page; null where no service is configured
    POST  hvdgrade/handin   {"path", "key"}: hand in; 503 if there was no answer, so send the same again

The environment variable HVDGRADE_SERVICE_URL is the address of the assignment's page. The token is that of
this server in JupyterHub, or HVDGRADE_TOKEN elsewhere.
"""

import json
import os
import re
from urllib.parse import urlsplit

from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse

SECONDS, MOST_BYTES = 40, 1 << 20
NO_ANSWER = {
    502,
    503,
    504,
}  # what a proxy says while the service is away, and the service without a database
PAGE = re.compile(r"(?P<server>https?://[^?#]+?)/a/(?P<slug>[^/?#]+)/?")


def page() -> str | None:
    """Return the address of the assignment's page; None where none is configured."""
    return os.environ.get("HVDGRADE_SERVICE_URL") or None


async def hand_in(script: bytes, key: str) -> dict:
    """Hand in a script; return the service's status of the submission, with the address of its page, `link`.

    Args:
        key: the same each time this request is repeated.

    Raises:
        HTTPError: 503 there was no answer; 409 the service refused it, for the reason in the message; 500 the
            configuration is wrong.
    """
    found = PAGE.fullmatch(page() or "")
    token = os.environ.get("JUPYTERHUB_API_TOKEN") or os.environ.get("HVDGRADE_TOKEN")
    if not found or not token:
        raise web.HTTPError(
            500,
            "HVDGRADE_SERVICE_URL must be an address as https://grade.example.edu/a/ASSIGNMENT, and outside "
            "of JupyterHub HVDGRADE_TOKEN your token.",
        )
    server = found["server"]
    answer = await _post(f"{server}/api/a/{found['slug']}/submissions", script, key, token)
    try:
        document = json.loads(answer.body)
        if answer.code in (200, 201):
            return document | {"link": f"{server}/s/{document['id']}"}
        reason = document["error"]
    except (ValueError, TypeError, KeyError):
        reason = (
            f"{urlsplit(server).netloc} answered {answer.code}, which is no answer of the service."
        )
    raise web.HTTPError(409, f"{reason}")


async def _post(url: str, script: bytes, key: str, token: str) -> HTTPResponse:
    request = HTTPRequest(
        url,
        "POST",
        {"Authorization": f"Bearer {token}", "Idempotency-Key": key},
        script,
        request_timeout=SECONDS,
        follow_redirects=False,
    )
    client = AsyncHTTPClient(force_instance=True, max_body_size=MOST_BYTES)
    try:
        answer = await client.fetch(request, raise_error=False)
    except (OSError, ValueError, HTTPClientError) as error:
        raise web.HTTPError(503, f"The service gave no answer: {error}.") from None
    finally:
        client.close()
    if answer.code in NO_ANSWER or answer.code == 599:
        raise web.HTTPError(503, "The service gave no answer.")
    return answer
