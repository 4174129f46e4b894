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
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from hvdgrade.jupyter import die_with_server
from hvdgrade.profiles import PROFILES

PREFIX = "hvdgrade-assess-"  # of the folder of a server
TAIL_BYTES = 1 << 20  # of the progress; its last lines say all
SHOWN = ("status", "reason", "verdict", "score", "max_score")
SHOWN_CHECK = ("title", "state", "points", "max_points", "rationale")


class Busy(Exception):
    """Another grading is running: one sentence."""


class Runner:
    """Grades for one server. Its files lie in a folder that ends with `close`."""

    def __init__(self):
        remove_abandoned()
        self.new_folder()
        self.process: subprocess.Popen | None = None
        self.request: dict = {}
        # Of the last grading. Another server, as after a restart, must not count the same: a panel that still
        # shows one of this server's would open that one's report.
        self.number = secrets.randbelow(1 << 40)
        self.started = 0.0
        self.cancelled = False

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, path: str, source: bytes, ranks: int, profile: str) -> None:
        """Grade `source`, which was read from `path`.

        Raises Busy while another grading runs, and OSError if this one cannot begin: the last stays.
        """
        if self.running:
            raise Busy("Another grading is running: wait for it, or cancel it first.")
        if not self.folder.is_dir():  # whoever clears up /tmp has taken it
            self.new_folder()
        last, place = self.place, self.folder / str(self.number + 1)
        shutil.rmtree(place, ignore_errors=True)  # of one that could not begin
        script = place / "submission" / Path(path).name
        script.parent.mkdir(parents=True)
        script.write_bytes(source)
        with (place / "log").open("w") as log, one_a_user() as lock:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", die_with_server.__name__, str(script), "-np", str(ranks),
                    "--profile", profile, "--json", str(place / "result.json"),
                    "--html", str(place / "report.html"),
                    "--progress", str(place / "progress"),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[lock],  # the lifeline holds it to its end, also without us
                start_new_session=True,  # Ctrl-C in the server's terminal is for the server
                # A learner's own random.py beside the notebook is not the grader's.
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )  # fmt: skip
        self.number += 1
        self.request = {"path": path, "ranks": ranks, "profile": profile}
        self.cancelled, self.started = False, time.monotonic()
        shutil.rmtree(last, ignore_errors=True)

    def new_folder(self) -> None:
        """A temporary folder that is readable by us alone, and known as ours as long as we live."""
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.held = open(self.folder / "held", "w")
        fcntl.flock(self.held, fcntl.LOCK_EX)

    @property
    def place(self) -> Path:
        """The folder of the last grading."""
        return self.folder / str(self.number)

    @property
    def report(self) -> Path:
        return self.place / "report.html"

    def cancel(self) -> None:
        """Ask the grading to end, if one runs. `status` says when it has."""
        if self.running:
            self.cancelled = True
            self.process.stdin.close()

    def close(self) -> None:
        """End the grading, wait until nothing is left of it, and remove the files."""
        self.cancel()
        if self.process:
            self.process.wait(3 * die_with_server.PATIENCE_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.held.close()

    def status(self) -> dict:
        """What the panel shows; `state` is idle, running, cancelling, cancelled, done or failed."""
        document = {
            "state": "idle",
            "number": self.number,
            "seconds": 0.0,
            "progress": progress(self.place / "progress"),
            "result": None,
            "report": False,
            "message": "",
            **self.request,
        }
        if self.running:
            document["state"] = "cancelling" if self.cancelled else "running"
            document["seconds"] = time.monotonic() - self.started
        elif self.process:
            document["result"] = result(self.place / "result.json")
            document["report"] = self.report.is_file()
            if document["result"]:
                document["state"] = "done"
            elif self.cancelled:
                document["state"] = "cancelled"
            else:
                document["state"] = "failed"
                document["message"] = last_words(self.place / "log", self.process.returncode)
        return document


def remove_abandoned() -> None:
    """Remove the folders of servers that were killed: those that nobody holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with open(folder / "held") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # held, or just made
            continue


@contextlib.contextmanager
def one_a_user() -> Iterator[int]:
    """A descriptor that only one grading of a user has on this machine, whichever server began it.

    Raises:
        Busy: another one has it.
    """
    place = (
        jupyter_runtime_dir()
    )  # in /tmp anybody could take the name; a home may be on many machines
    os.makedirs(place, mode=0o700, exist_ok=True)
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW
    lock = os.open(os.path.join(place, f"hvdgrade-{socket.gethostname()}.lock"), flags, 0o600)
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
    """What can be chosen: the profiles, each with a line about it, and the largest number of ranks."""
    tables = tomllib.loads(PROFILES.read_text(encoding="utf-8"))
    titles = {name: table["title"] for name, table in tables.items() if "title" in table}
    return {"profiles": titles, "max_ranks": tables["common"]["max_ranks"]}


def progress(path: Path) -> dict:
    """All that the grader has said so far in one object: a later event overrides an earlier one.

    `title` is what it is doing, in its own words. Seconds and limit are the stage's, epochs the submission's.
    """
    said: dict = {}
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return said
    for line in lines:
        event = read_json(line)  # None for a line that is cut off
        if not isinstance(event, dict):
            continue
        running = event.get("stage") == "running"
        if event.get("stage") != said.get("stage"):
            said |= {"seconds": None, "limit": None}
            if running:
                said["epochs"] = []
        if not running:
            event.pop("epochs", None)  # of the grader's own measurement or of its probe
        said |= event
        if (text := str(event.get("text"))).endswith("..."):
            said["title"] = text.removesuffix("...").strip()
    return said


def result(path: Path) -> dict | None:
    """What the panel shows of the result document."""
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


def read_json(text: bytes):
    """The value, None for what is no JSON. A number that browsers do not know becomes None too."""

    def number(digits: str) -> float | None:
        return value if math.isfinite(value := float(digits)) else None

    try:
        return json.loads(text, parse_float=number, parse_constant=lambda name: None)
    except ValueError:  # UnicodeDecodeError is one
        return None


def last_words(log: Path, code: int) -> str:
    """Why there is no result, as far as the grader or the code of its end tells."""
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    said = [line.strip().removeprefix("hvdgrade: ") for line in lines]
    # What it was doing is no reason, and neither is that it asks for the lines above.
    said = [
        line for line in said if line and not line.endswith("...") and "lines above" not in line
    ]
    if code > 128:
        why = ", perhaps as there was too little memory" * (code == 128 + signal.SIGKILL)
        said.append(f"it was ended by signal {code - 128}{why}.")
    words = said[-1][:500] if said else f"it ended with code {code}."
    return f"{words} All that it printed is in {log}."
