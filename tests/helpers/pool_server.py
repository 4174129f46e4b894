"""A server that keeps the contract of the service with its workers, in memory, for tests of the worker.

with PoolServer() as server:
    server.add(script)          # a submission that waits
    ...                         # a worker with the token `server.token` and the address `server.url`
    server.gradings[1].state    # "queued", "leased" or "done"
"""

import base64
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAIT_SECONDS = 1.0  # that a claim waits for a grading; a real server waits up to 25 s


@dataclass
class Grading:
    """One grading of the queue, and all that the workers have sent about it."""

    script: bytes
    asked: dict
    state: str = "queued"
    token: str = ""
    tokens: list[str] = field(default_factory=list)  # of all leases
    progress: list[str] = field(default_factory=list)
    results: list[dict] = field(default_factory=list)
    documents: list[dict] = field(default_factory=list)
    returned: int = 0
    worker_ended: int = 0  # of those times, because the worker was told to end


class PoolServer:
    """The server. `down()` closes its port, `up()` opens the same one again."""

    def __init__(self) -> None:
        self.token, self.gradings, self.claims = secrets.token_hex(16), {}, []
        self.refuses = ""  # why no worker fits the pool
        self.lock, self.server, self.port = threading.Lock(), None, 0
        self.answered: list[tuple[str, int]] = []

    def __enter__(self) -> "PoolServer":
        self.up()
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        handler = type("Handler", (Handler,), {"pool": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def down(self) -> None:
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def add(self, script: str, **asked: object) -> Grading:
        """Add a submission to the queue; return its grading."""
        what = {
            "profile": "dli",
            "ranks": 1,
            "limit_s": 600.0,
            "require_sandbox": "",
            "hints": False,
        }
        with self.lock:
            number = len(self.gradings) + 1
            self.gradings[number] = Grading(script.encode(), what | asked)
            return self.gradings[number]

    def take_away(self, grading: Grading) -> None:
        """Let a lease run out."""
        with self.lock:
            grading.state, grading.token = "expired", ""

    # --- what the routes do -----------------------------------------------------------------------

    def claim(self, body: dict) -> tuple[int, dict]:
        self.claims.append(body)
        if self.refuses:
            return 409, {"refused": self.refuses}
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and self.server:
            with self.lock:
                for number, grading in self.gradings.items():
                    if grading.state == "queued":
                        grading.state, grading.token = "leased", secrets.token_urlsafe(32)
                        grading.tokens.append(grading.token)
                        script = base64.b64encode(grading.script).decode()
                        lease = {"grading": number, "token": grading.token, "script": script}
                        return 200, {**lease, "submission": f"sub-{number}", **grading.asked}
            time.sleep(0.02)
        return 204, {}

    def about(self, number: int, what: str, body: dict) -> tuple[int, dict]:
        with self.lock:
            grading = self.gradings[number]
            held = grading.token and body["token"] == grading.token
            if what == "result" and grading.state == "done" and held:
                return 200, {}
            if grading.state != "leased" or not held:
                return 409, {"error": "the lease has run out"}
            if what == "beat":
                grading.progress.append(body["progress"])
                return 200, {"lease_s": 60}
            if what == "back":
                grading.state, grading.token = "queued", ""
                grading.returned += 1
                grading.worker_ended += body["worker_ends"]
                return 200, {}
            grading.state = "done"
            grading.results.append(body)
            grading.documents.append(body["document"])
            return 200, {}


class Handler(BaseHTTPRequestHandler):
    """Hands each request to the server."""

    pool: PoolServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        *_, number, what = ["", *self.path.split("/")]
        if self.headers["Authorization"] != f"Bearer {self.pool.token}":
            status, answer = 401, {"error": "unknown token"}
        elif self.path == "/api/claim":
            status, answer = self.pool.claim(body)
        else:
            status, answer = self.pool.about(int(number), what, body)
        self.pool.answered.append((what, status))
        data = b"" if status == 204 else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""
