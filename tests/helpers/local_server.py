"""A real HTTP server on a free port of this machine, for tests of what the service asks of others."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message


@dataclass
class Request:
    method: str
    path: str
    headers: Message
    body: bytes


# Gets the request and the open connection; returns status, headers and body, or None to send nothing.
Answer = Callable[[Request, http.server.BaseHTTPRequestHandler], tuple[int, dict, bytes] | None]


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve; yield the address. `answer` is called in a thread for each request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def respond(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            given = answer(Request(self.command, self.path, self.headers, body), self)
            if given is None:
                self.close_connection = True
                return
            status, headers, body = given
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = respond

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
