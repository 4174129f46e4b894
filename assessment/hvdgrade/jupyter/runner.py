"""Run one grading at a time: start it, report its progress, cancel it, and return its result."""

import contextlib
import fcntl
import json
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir

from hvdgrade import HvdgradeError
from hvdgrade.jupyter import die_with_server
from hvdgrade.profiles import PROFILES
from hvdlab.system.held_folder import HeldFolder, left_over
from hvdlab.system.rank_limit import most_ranks

PREFIX = "hvdgrade-assess-"  # of the name of a server's folder
TAIL_BYTES = (
    1 << 20
)  # the end of the progress file that is read; it contains everything that the panel shows
SHOWN = ("status", "reason", "verdict", "score", "max_score")
SHOWN_CHECK = ("title", "state", "points", "max_points", "rationale")


class Busy(HvdgradeError):
    """Another grading is running. The message is one sentence for the learner."""


class Runner:
    """Run the gradings of one Jupyter server. All files lie in a folder that `close` removes."""

    def __init__(self) -> None:
        for abandoned in left_over(PREFIX):  # of servers that were killed
            shutil.rmtree(abandoned, ignore_errors=True)
        self.new_folder()
        self.process: subprocess.Popen | None = None
        self.request: dict = {}
        # Number of the last grading. It starts at a random value, so that two servers, for example before and
        # after a restart, use different numbers. Otherwise a panel that still shows a grading of the old
        # server would open a report of the new one.
        self.number = secrets.randbelow(1 << 40)
        self.started = 0.0
        self.cancelled = False

    @property
    def running(self) -> bool:
        """Whether a grading is running."""
        return self.process is not None and self.process.poll() is None

    def start(self, path: str, source: bytes, ranks: int, profile: str) -> None:
        """Start to grade a script.

        Args:
            source: the bytes of the script.
            ranks: number of ranks.

        Raises:
            Busy: another grading is running.
            OSError: the grading cannot be started. The result of the last grading stays available.
        """
        if self.running:
            raise Busy("Another grading is running: wait for it, or cancel it first.")
        if not self.folder.is_dir():  # a program that cleans up /tmp has removed it
            self.new_folder()
        previous, folder = self.grading_folder, self.folder / str(self.number + 1)
        shutil.rmtree(folder, ignore_errors=True)  # left by a grading that could not be started
        script = folder / "submission" / Path(path).name
        script.parent.mkdir(parents=True)
        script.write_bytes(source)
        with (folder / "log").open("wb") as log, one_grading_per_user() as lock:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", die_with_server.__name__, str(script), "-np", str(ranks),
                    "--profile", profile, "--json", str(folder / "result.json"),
                    "--html", str(folder / "report.html"),
                    "--progress", str(folder / "progress"),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],  # the process holds the lock until it ends, even if the server is killed
                start_new_session=True,  # so that Ctrl-C in the server's terminal reaches only the server
                # The grader must not import a learner's random.py from the notebook's folder.
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )  # fmt: skip
        self.number += 1
        self.request = {"path": path, "ranks": ranks, "profile": profile}
        self.cancelled, self.started = False, time.monotonic()
        shutil.rmtree(previous, ignore_errors=True)

    def new_folder(self) -> None:
        """Create a temporary folder that only this user can read, and hold it as long as this process runs.

        Raises:
            OSError: it cannot be created.
        """
        self.held = HeldFolder(PREFIX)
        self.folder = self.held.path

    @property
    def grading_folder(self) -> Path:
        """The folder of the last grading."""
        return self.folder / str(self.number)

    @property
    def report(self) -> Path:
        """The report of the last grading (HTML). It exists once the grading is done."""
        return self.grading_folder / "report.html"

    def cancel(self) -> None:
        """Request the grading to end, if one is running. `status` shows when it has ended."""
        if self.running:
            self.cancelled = True
            self.process.stdin.close()

    def close(self) -> None:
        """End the grading, wait until all of its processes have ended, and remove the files.

        Raises:
            subprocess.TimeoutExpired: the grading did not end in time.
        """
        self.cancel()
        if self.process:
            self.process.wait(die_with_server.END_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.held.release()

    def status(self) -> dict:
        """Return what the panel shows.

        Returns:
            A JSON object. Its `state` is idle, running, cancelling, cancelled, done or failed.
        """
        document = {
            "state": "idle",
            "number": self.number,
            "seconds": 0.0,
            "progress": progress(self.grading_folder / "progress"),
            "result": None,
            "report": False,
            "message": "",
            **self.request,
        }
        if self.running:
            document["state"] = "cancelling" if self.cancelled else "running"
            document["seconds"] = time.monotonic() - self.started
        elif self.process:
            document["result"] = result(self.grading_folder / "result.json")
            document["report"] = self.report.is_file()
            if document["result"]:
                document["state"] = "done"
            elif self.cancelled:
                document["state"] = "cancelled"
            else:
                document["state"] = "failed"
                code = self.process.returncode
                document["message"] = failure_reason(self.grading_folder / "log", code)
        return document


@contextlib.contextmanager
def one_grading_per_user() -> Iterator[int]:
    """Hold a lock that only one grading of a user can hold on this machine, also with several servers.

    Yields:
        The file descriptor of the lock.

    Raises:
        Busy: another grading holds the lock.
    """
    # Not in /tmp, where any user could create the file first. The file name contains the name of the machine,
    # because several machines may share a home folder.
    folder = jupyter_runtime_dir()
    os.makedirs(folder, mode=0o700, exist_ok=True)
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW
    lock = os.open(os.path.join(folder, f"hvdgrade-{socket.gethostname()}.lock"), flags, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                "Another JupyterLab of yours is grading on this machine: wait for it, or cancel it there."
            ) from None
        yield lock
    finally:
        os.close(lock)


def rules() -> dict:
    """Return the choices of the panel: `profiles` (name -> title) and `max_ranks`."""
    tables = tomllib.loads(PROFILES.read_text(encoding="utf-8"))
    # Not every entry is a profile: [common] and [points] have no title, and rules_version is a number.
    titles = {
        name: table["title"]
        for name, table in tables.items()
        if isinstance(table, dict) and "title" in table
    }
    return {"profiles": titles, "max_ranks": min(tables["common"]["max_ranks"], most_ranks())}


def progress(path: Path) -> dict:
    """Return the grader's progress so far: all of its events in one dict, where later events win.

    Args:
        path: the file that `hvdgrade run --progress` writes. It may end with half a line.

    Returns:
        Among others `title` (what the grader is doing), `seconds` and `limit` (of the current stage), and
        `epochs` (of the submission, not of the grader's own runs). {} if the file does not exist yet.
    """
    merged: dict = {}
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return merged
    for line in lines:
        event = read_json(line)  # None for an incomplete line
        if not isinstance(event, dict):
            continue
        running = event.get("stage") == "running"
        if event.get("stage") != merged.get("stage"):
            merged |= {"seconds": None, "limit": None}
            if running:
                merged["epochs"] = []
        if not running:
            event.pop("epochs", None)  # epochs of the grader's own measurement, or of its probe
        merged |= event
        if (text := str(event.get("text"))).endswith("..."):
            merged["title"] = text.removesuffix("...").strip()
    return merged


def result(path: Path) -> dict | None:
    """Return the part of the result that the panel shows, or None if there is no valid result."""
    try:
        document = read_json(path.read_bytes())
    except FileNotFoundError:
        return None
    if not isinstance(document, dict):
        return None
    shown = {key: document.get(key) for key in SHOWN}
    shown["checks"] = [
        {key: check.get(key) for key in SHOWN_CHECK} for check in document.get("checks", [])
    ]
    return shown


def read_json(text: bytes) -> Any:
    """Return a JSON value, or None if the text is not JSON.

    Numbers that a browser's JSON parser rejects (NaN and infinity) become None, too.
    """

    def number(digits: str) -> float | None:
        return value if math.isfinite(value := float(digits)) else None

    try:
        return json.loads(text, parse_float=number, parse_constant=lambda name: None)
    except ValueError:  # includes UnicodeDecodeError
        return None


def failure_reason(log: Path, code: int) -> str:
    """Return why there is no result, from the output of the grader or from its exit code."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip().removeprefix("hvdgrade: ") for line in text.split("\n")]
    # A line about a stage ("running the submission ...") is not a reason, and neither is the request to
    # report the lines above.
    reasons = [
        line for line in lines if line and not line.endswith("...") and "lines above" not in line
    ]
    if code > 128:
        cause = ", perhaps because there was too little memory" * (code == 128 + signal.SIGKILL)
        reasons.append(f"the grader was ended by signal {code - 128}{cause}.")
    reason = reasons[-1][:500] if reasons else f"the grader ended with exit code {code}."
    return f"{reason} Its whole output is in {log}."
