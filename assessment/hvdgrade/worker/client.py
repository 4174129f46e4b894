"""What a worker asks of the server, and what the answers mean."""

import json
from typing import Any

import httpx

from hvdgrade import HvdgradeError, __version__
from hvdgrade.output.text import printable
from hvdgrade.result_document import ResultDocument
from hvdgrade.worker.spool import Lease

CLAIM_SECONDS = 25.0  # the server waits so long for a grading before it answers a claim
ANSWER_SECONDS, CONNECT_SECONDS = 20.0, 10.0
REASON_CHARACTERS = 300  # of the server's sentence


class Away(HvdgradeError):
    """The server cannot be reached, or cannot answer now. The same request may succeed later."""


class Refused(HvdgradeError):
    """The server refuses this request, and would refuse it again. The message is its reason."""


class LeaseLost(Refused):
    """The grading belongs to another worker by now, or this worker does not fit its pool."""


class TokenRefused(HvdgradeError):
    """The server does not accept this worker's token."""


class Server:
    """The server, for one worker. A client may be used by several threads.

    Args:
        url: address of the server, with its path if it has one.

    Raises:
        Refused: the address is no address of a web server.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        try:
            address = httpx.URL(url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise Refused(
                f"--server must be an address such as https://grade.example.edu. Received: {url}"
            )
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "User-Agent": f"hvdgrade-worker/{__version__}",
        }
        self.http = httpx.Client(base_url=address, headers=headers)

    def claim(self, facts: dict[str, Any]) -> dict | None:
        """Return a grading, or None if none waits. It may take CLAIM_SECONDS.

        Raises:
            LeaseLost: this worker does not fit its pool; the message says why.
            Away, TokenRefused: see there.
        """
        try:
            answer = self.post("/api/claim", facts, CLAIM_SECONDS)
            return answer.json() if answer.status_code == httpx.codes.OK else None
        except LeaseLost:
            raise
        except (Refused, ValueError) as error:
            raise Away(f"it does not answer like a server of hvdgrade ({error})") from None

    def beat(self, lease: Lease, progress: str) -> None:
        """Extend a lease, and show the progress. Raises LeaseLost, Refused, Away or TokenRefused."""
        self.about(lease, "beat", progress=progress)

    def result(self, lease: Lease, document: ResultDocument, log: str) -> None:
        """Send a result. Raises LeaseLost, Refused, Away or TokenRefused."""
        self.about(lease, "result", document=document, log=log)

    def give_back(self, lease: Lease, why: str, worker_ends: bool) -> None:
        """Let another worker have a grading. Raises LeaseLost, Refused, Away or TokenRefused.

        Args:
            why: for staff, and continues "its worker gave it back, because".
            worker_ends: whether the only reason is that this worker ends. Then it costs the grading no try.
        """
        self.about(lease, "back", why=why, worker_ends=worker_ends)

    def about(self, lease: Lease, what: str, **more: Any) -> None:
        self.post(f"/api/gradings/{lease.grading}/{what}", {"token": lease.token, **more})

    def post(self, path: str, body: dict, waits: float = 0.0) -> httpx.Response:
        """Send a JSON object, and return an answer that is no refusal. Raises as the methods above.

        Args:
            waits: seconds for which the server may wait before it answers.
        """
        try:
            # In ASCII, because a text that a submission wrote may hold half a character.
            timeout = httpx.Timeout(waits + ANSWER_SECONDS, connect=CONNECT_SECONDS)
            answer = self.http.post(path, content=json.dumps(body), timeout=timeout)
        except httpx.HTTPError as error:
            raise Away(printable(str(error)) or type(error).__name__) from None
        status = answer.status_code
        if status in (httpx.codes.OK, httpx.codes.NO_CONTENT):
            return answer
        reason = reason_of(answer)
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise TokenRefused(
                f"{self.url} refuses the token ({reason}): make another one on the server with `hvdgrade "
                "token new --worker POOL`, and start the worker with it."
            )
        if status == httpx.codes.CONFLICT:
            raise LeaseLost(reason)
        if status >= 500 or status in (
            httpx.codes.REQUEST_TIMEOUT,
            httpx.codes.TOO_MANY_REQUESTS,
        ):
            raise Away(reason)
        raise Refused(reason)


def reason_of(answer: httpx.Response) -> str:
    """Return why the server refuses a request, in its own words if it gives any."""
    try:
        document = answer.json()
        words = document.get("refused") or document.get("error")
    except (ValueError, AttributeError):
        words = None
    return printable(str(words or f"{answer.status_code} {answer.reason_phrase}"))[
        :REASON_CHARACTERS
    ]
