"""Requests that the service sends to other servers: a CI's keys, the hub, the learning platform.

Each has a time limit and a size limit, follows no redirect, and takes no compressed answer, because an answer
can be larger than what it claims.
"""

import functools
import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

SECONDS = 10.0
MOST_BYTES = 256 * 1024


class NoAnswer(Exception):
    """The other server did not give an answer that can be read."""


@dataclass(frozen=True)
class Answer:
    """An answer of another server, whatever its status."""

    status: int
    body: bytes

    def document(self) -> dict[str, Any]:
        """Return the JSON object in the body, or raise NoAnswer."""
        try:
            document = json.loads(self.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise NoAnswer("the answer is not a JSON object.")
        return document


def ask(method: str, url: str, seconds: float = SECONDS, **request: Any) -> Answer:
    """Send a request and return its answer.

    Args:
        seconds: time limit for all of it.
        request: arguments of `httpx.Client.stream`, for example headers, data or json.

    Raises:
        NoAnswer: there is no connection, no complete answer in time, or an answer larger than `MOST_BYTES`.
    """
    end = time.monotonic() + seconds
    body = b""
    try:
        with _client().stream(method, url, timeout=seconds, **request) as answer:
            for part in answer.iter_raw():
                body += part
                if len(body) > MOST_BYTES:
                    raise NoAnswer(f"{url} sent more than {MOST_BYTES} bytes.")
                if time.monotonic() > end:
                    raise NoAnswer(f"{url} took longer than {seconds:g} s.")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NoAnswer(f"{url} gave no answer: {error or type(error).__name__}.") from None
    return Answer(answer.status_code, body)


@functools.cache
def _client() -> httpx.Client:
    """Return the client of this process. It keeps no connection, because the other side may end it."""
    return httpx.Client(
        headers={"Accept-Encoding": "identity", "User-Agent": "hvdgrade"},
        limits=httpx.Limits(max_keepalive_connections=0),
    )
