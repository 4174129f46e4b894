"""A small server that takes submissions by the contract of `hvdgrade serve`, and that can fail on purpose.

with running(["done"]) as server:
    server.failures = ["lose answer"]       # of the next requests
    ... server.url, server.requests, server.submissions
"""

import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "a token of 43 characters"


@dataclass
class Server:
    """What the server knows.

    Attributes:
        course: the status documents of a submission, one per request; the last one stays.
        payloads: format -> content of the platform's file; None answers 409.
        tokens: the tokens that it accepts.
        failures: what happens to the next requests: "lose request", "lose answer", "half an answer", or a
            tuple of status code, sentence and perhaps Retry-After. None: nothing.
        requests: the requests that arrived: method, path, headers.
        submissions: key -> person and hash of the script.
    """

    course: list[dict]
    payloads: dict[str, str | None] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    failures: list = field(default_factory=list)
    requests: list[tuple[str, str, dict]] = field(default_factory=list)
    submissions: dict[str, tuple[str, str]] = field(default_factory=dict)
    url: str = ""

    def post(self, headers: dict, body: bytes) -> tuple[int, dict]:
        """Take a submission: 201, and 200 for the same one again."""
        key = headers.get("idempotency-key", "")
        if not 0 < len(key) <= 100:
            return 400, {"error": "Idempotency-Key is missing"}
        if len(body) > 64 << 10:
            return 413, {"error": "larger than 64 kB"}
        person = urllib.parse.unquote(headers.get("hvdgrade-learner", "me"))
        what = person, hashlib.sha256(body).hexdigest()
        known = key in self.submissions
        if self.submissions.setdefault(key, what) != what:
            return 409, {"error": "this key belongs to another submission"}
        return (200 if known else 201), self.status()

    def status(self) -> dict:
        """Return the next status document of the course."""
        now = self.course.pop(0) if len(self.course) > 1 else self.course[0]
        return {"id": "s-1", "assignment": "cifar", "number": 1, "workers": 1, **now}

    def get(self, path: str) -> tuple[int, dict | str]:
        """Return the status of the submission, or its payload."""
        place, _, query = path.partition("?format=")
        if place != "/api/submissions/s-1":
            return 404, {"error": "no such submission"}
        if query and self.payloads.get(query) is None:
            return 409, {"error": "the grader failed: there is nothing to write"}
        return 200, self.payloads[query] if query else self.status()


class Handler(BaseHTTPRequestHandler):
    """Answer requests by `server.known`."""

    protocol_version = "HTTP/1.1"

    def handle_one(self) -> None:
        known: Server = self.server.known
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        known.requests.append((self.command, self.path, headers))
        failure = known.failures.pop(0) if known.failures else None
        if failure == "lose request":
            self.close_connection = True
            return
        if isinstance(failure, tuple):
            self.reply(failure[0], {"error": failure[1]}, *failure[2:])
        elif headers.get("authorization", "").removeprefix("Bearer ") not in known.tokens:
            self.reply(401, {"error": "unknown token"})
        else:
            code, said = known.post(headers, body) if body else known.get(self.path)
            if failure != "lose answer":
                self.reply(code, said, half=failure == "half an answer")
            self.close_connection = self.close_connection or failure is not None

    do_GET = do_POST = handle_one

    def reply(self, code: int, said: dict | str, retry_after: str = "", half: bool = False) -> None:
        text = (said if isinstance(said, str) else json.dumps(said)).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        if retry_after:
            self.send_header("Location" if code // 100 == 3 else "Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(text[: len(text) // 2] if half else text)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def running(course: list[dict], **more: object) -> Iterator[Server]:
    """Run a server on this machine until the block ends."""
    known = Server(course, **more)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.known = True, known
    known.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
