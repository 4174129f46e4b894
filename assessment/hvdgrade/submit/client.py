#!/usr/bin/env python3
"""Hand in a script to a server of hvdgrade. This file needs only Python, and works as a copy on its own.

python3 client.py assessment.py --server https://grade.example.edu --assignment cifar --wait
"""

import argparse
import http.client
import json
import os
import random
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, urlsplit

EPILOG = """\
The token is that of --token-file, or of the variable HVDGRADE_TOKEN. A job of GitHub or GitLab has its own:
give it `permissions: id-token: write`, or an `id_tokens` block with HVDGRADE_ID_TOKEN.

example:
  hvdgrade submit assessment.py --server https://grade.example.edu --assignment cifar --wait

exit codes: 0 pass, 1 fail, 2 not gradable, refused or wrong usage, 3 grader fault, or no answer in time;
without --wait 0 means that the server has the script
"""
LARGEST_SCRIPT, LARGEST_ANSWER = 64 << 10, 4 << 20  # bytes
AGAIN = {429, 502, 503, 504, 507}  # answers after which the same request may succeed
FOR_AUTHORS = {403, 409, 413, 429}  # closed, another script with this key, too large, too often
FINAL = {"done", "fault", "cancelled", "replaced"}
FORMATS = ("gradescope", "prairielearn", "classroom50", "junit")
POLL_SECONDS, FIRST_PAUSE, LONGEST_PAUSE, REQUEST_SECONDS, TOKEN_SECONDS = 3, 1, 30, 60, 240
REFUSED, FAULT = 2, 3  # exit codes
NO_ANSWER = (urllib.error.URLError, http.client.HTTPException, OSError)


class Stopped(Exception):
    """The command ends without a result. The arguments are a sentence and perhaps the exit code."""


class Refused(Stopped):
    """This submission is not taken, for a reason that its author must know."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdgrade submit`."""
    add = parser.add_argument
    add("script", type=Path, metavar="SCRIPT", help="the script")
    add("--server", required=True, metavar="URL", help="address of the server")
    add("--assignment", required=True, metavar="SLUG", help="name of the assignment")
    add("--token-file", type=Path, metavar="FILE", help="file that holds the token")
    add("--wait", action="store_true", help="wait for the result")
    add("--format", choices=FORMATS, help="wait, and write the result in this format")
    add("--output", type=Path, metavar="FILE", help="file to write (default: the terminal)")
    add("--limit", type=float, default=3600, metavar="SECONDS", help="give up then (default 3600)")
    add("--learner", metavar="ID", help="for whom the token of a platform hands in")
    add("--learner-name", metavar="NAME", help="name of that person")
    add("--key", metavar="KEY", help="a key never counts twice (default: a new one)")


def main(args: argparse.Namespace) -> int:
    """Hand in the script, wait if that is wanted, and return the exit code."""
    try:
        script = read_script(args.script)
        server = Server(args.server, args.token_file, time.monotonic() + args.limit)
        about = {"Hvdgrade-Learner": args.learner, "Hvdgrade-Learner-Name": args.learner_name}
        status = server.submit(args.assignment, script, args.key or secrets.token_hex(16), about)
        _say(f"{args.script}: submission {status['id']}, number {status.get('number')}")
        if not (args.wait or args.format):
            return 0
        status = server.wait(status)
        if args.format and (content := server.content(status, args.format)):
            _write(args.output, content)
    except Stopped as error:
        reason, code = (*error.args, REFUSED)[:2]
        _say(f"hvdgrade submit: {reason}")
        return code
    return exit_code(status)


def exit_code(status: dict) -> int:
    """Return the exit code for a finished submission, as of `hvdgrade run`."""
    code = status.get("exit_code")
    return code if code in range(4) else {"done": 0, "fault": FAULT}.get(status["state"], REFUSED)


def read_script(path: Path) -> bytes:
    """Return the bytes of the script; raise Refused if it cannot be read or is larger than 64 kB."""
    try:
        with path.open("rb") as file:
            script = file.read(LARGEST_SCRIPT + 1)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.") from None
    if len(script) > LARGEST_SCRIPT:
        raise Refused(f"{path} is larger than 64 kB: take the data out of it.")
    return script


def _given_token(file: Path | None) -> str:
    """Return the token of the file or of the environment; "" if GitHub gives this job one."""
    names = ("HVDGRADE_TOKEN", "HVDGRADE_ID_TOKEN")
    try:
        token = file.read_text(encoding="utf-8").strip() if file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Stopped(f"{file} cannot be read: {error}.") from None
    token = token or next((os.environ[name] for name in names if os.environ.get(name)), "")
    if not token and not os.environ.get("ACTIONS_ID_TOKEN_REQUEST_URL"):
        raise Stopped("no token: name its file with --token-file, or set HVDGRADE_TOKEN.")
    return token


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: object) -> None:
        """Follow no redirect, because urllib would send the token to the other address."""


class Server:
    """The server at an address, as one person or one platform sees it.

    Args:
        token_file: None for the token of the environment.
        deadline: when to give up, in seconds of `time.monotonic`.
    """

    def __init__(self, url: str, token_file: Path | None, deadline: float) -> None:
        self.url, self.deadline = url.rstrip("/"), deadline
        if urlsplit(url).scheme not in ("https", "http") or not urlsplit(url).hostname:
            raise Stopped(f"--server must be like https://grade.example.edu. Received: {url}")
        self.opener = urllib.request.build_opener(_NoRedirect)
        self.token, self.fetched = _given_token(token_file), float("-inf")
        self.from_github = not self.token

    def submit(self, assignment: str, script: bytes, key: str, about: dict) -> dict:
        """Hand in the script and return the server's status document.

        `about` has headers that say for whom a platform hands in. Their text is sent percent-encoded.

        Raises:
            Stopped: the server refuses it, or does not answer in time.
        """
        headers = {"Idempotency-Key": key, "Content-Type": "text/x-python"}
        headers |= {name: quote(text, safe=" @+") for name, text in about.items() if text}
        path = f"/api/a/{quote(assignment, safe='')}/submissions"
        return _status(self.ask(path, headers, script)[1])

    def wait(self, status: dict) -> dict:
        """Print each change of a submission until it is finished, and return its last status document.

        Raises:
            Stopped: it is not finished in time, or the server's estimate says that it will not be.
        """
        shown, lines = "", []
        while True:
            if (now := _described(status)) != shown:
                _say(now)
            said = _plain(status.get("progress") or "").splitlines()
            for line in _new_lines(lines, said):
                _say(f"  {line}")
            shown, lines = now, said or lines
            if status["state"] in FINAL:
                _say(status.get("message"))
                return status
            if time.monotonic() + max(POLL_SECONDS, status.get("estimate_s") or 0) > self.deadline:
                kept = "The server keeps the submission: the same --key asks for it again."
                raise Stopped(f"no result within the time limit, {now}. {kept}", FAULT)
            time.sleep(POLL_SECONDS)
            status = _status(self.ask(f"/api/submissions/{quote(status['id'])}")[1])

    def content(self, status: dict, format: str) -> bytes:
        """Return what belongs into the platform's file; b"" if the platform must get none."""
        path = f"/api/submissions/{quote(status['id'])}?format={format}"
        code, body = self.ask(path, allowed=(200, 409))
        if code == 409:
            _say(_sentence(body))
        return body if code == 200 else b""

    def ask(
        self, path: str, headers: dict | None = None, body: bytes | None = None, allowed=(200, 201)
    ) -> tuple[int, bytes]:
        """Repeat a request until it has an answer, and return the status code and the body.

        Raises:
            Stopped: the status code is not one of `allowed`, or there is no answer in time.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                bearer = {"Authorization": f"Bearer {self._bearer()}"}
                code, said, wait = self._send(self.url + path, bearer | (headers or {}), body)
            except ValueError as error:
                raise Stopped(f"the token or the key cannot be sent: {error}.") from None
            except NO_ANSWER as error:
                reason = getattr(error, "reason", error)
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise Stopped(f"{self.url} has no valid certificate: {reason}.") from None
                code, said, wait = 503, (str(reason) or "the connection was lost").encode(), 0
            if code in allowed:
                return code, said
            if code not in AGAIN:
                kind = Refused if code in FOR_AUTHORS else Stopped
                raise kind(f"the server refuses it ({code}): {_sentence(said)}")
            # A random part, so that not all clients come back at once.
            seconds = max(wait, pause * random.uniform(0.75, 1.25))
            if time.monotonic() + seconds > self.deadline:
                if code == 429:
                    raise Refused(_sentence(said))
                raise Stopped(f"no answer in time ({code}): {_sentence(said)}", FAULT)
            _say(f"{self.url}: {_sentence(said)}. Again in {seconds:.0f} s")
            time.sleep(seconds)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _send(self, url: str, headers: dict, body: bytes | None = None) -> tuple[int, bytes, int]:
        """Send a request, and return status code, body, and the seconds of Retry-After."""
        seconds = max(1, min(REQUEST_SECONDS, self.deadline - time.monotonic()))
        try:
            answer = self.opener.open(urllib.request.Request(url, body, headers), timeout=seconds)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            said = answer.read(LARGEST_ANSWER)
            if answer.length:  # bytes of the body that have not come
                raise http.client.IncompleteRead(said, answer.length)
            wait = answer.headers.get("Retry-After") or ""
            return answer.status, said, int(wait) if wait.isdecimal() else 0

    def _bearer(self) -> str:
        """Return the token; in a job of GitHub the one that GitHub gives this job for our server."""
        if self.from_github and time.monotonic() - self.fetched > TOKEN_SECONDS:
            place, secret = (os.environ[f"ACTIONS_ID_TOKEN_REQUEST_{n}"] for n in ("URL", "TOKEN"))
            url = f"{place}&audience={quote(self.url, safe='')}"
            code, body, _ = self._send(url, {"Authorization": f"Bearer {secret}"})
            if code != 200:
                raise Stopped(f"GitHub gives this job no token ({code}): {_sentence(body)}", FAULT)
            self.token, self.fetched = json.loads(body)["value"], time.monotonic()
        return self.token


def _status(body: bytes) -> dict:
    """Return the status document in an answer."""
    try:
        status = json.loads(body)
        return status | {name: "" + status[name] for name in ("id", "state")}  # both are text
    except (ValueError, KeyError, TypeError):
        raise Stopped("the answer is not one of hvdgrade: look at --server.", FAULT) from None


def _sentence(body: bytes) -> str:
    """Return the sentence of an error document, or the beginning of another answer."""
    try:
        return _plain(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return _plain(" ".join(body[:200].decode(errors="replace").split()))


def _described(status: dict) -> str:
    """Return the state of a submission and its place in words."""
    if status["state"] != "queued" or status.get("place") is None:
        return {"leased": "running"}.get(status["state"], status["state"])
    alone = ", no worker is online" if status.get("workers") == 0 else ""
    return f"queued, place {status['place']}{alone}"


def _new_lines(before: list[str], now: list[str]) -> list[str]:
    """Return the lines of `now` after those which it shares with the end of `before`."""
    shared = next((n for n in range(len(now), 0, -1) if before[-n:] == now[:n]), 0)
    return now[shared:]


def _plain(text: object) -> str:
    """Return a text without control characters, because it may come from a submission."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(text))


def _say(line: object) -> None:
    """Print a line on stderr at once."""
    if line:
        print(_plain(line), file=sys.stderr, flush=True)


def _write(path: Path | None, content: bytes) -> None:
    """Write a file completely or not at all; without a path to stdout."""
    if path is None:
        sys.stdout.write(content.decode(errors="replace"))
        return
    unfinished = path.with_name(f".{path.name}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        raise Stopped(f"{path} cannot be written: {error.strerror}.", FAULT) from None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    sys.exit(main(parser.parse_args()))
