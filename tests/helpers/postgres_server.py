"""Run a PostgreSQL server in a folder, without a network: it listens on a socket file.

    with running(folder) as server:
        url = server.database("name")            # a new database, a copy of the template if there is one

Root cannot run PostgreSQL, so root starts it as the user that Debian's package makes, or as nobody.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

PROGRAMS = ("initdb", "postgres", "pg_dump", "pg_restore")
START_SECONDS, END_SECONDS = 60, 30


@dataclass
class Server:
    """A server. `stop` ends it at once, as a power failure does, and `start` starts it again."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen | None = None

    def run(self, *command: str) -> subprocess.Popen:
        log = open(self.folder / "log", "ab")  # noqa: SIM115, the process has it
        with log:
            return subprocess.Popen(
                [str(folder_of_programs() / command[0]), *command[1:]],
                **other_user(),
                preexec_fn=end_with_parent,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = {"listen_addresses": "", "fsync": "off", "max_connections": "200"}
        options["unix_socket_directories"] = str(self.folder)
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self.process = self.run("postgres", "-D", str(self.folder / "data"), *settings)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self.sql("SELECT 1")
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PostgreSQL did not start:\n{said}") from None
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End it: SIGQUIT at once, SIGINT after a rollback of what is open."""
        self.process.send_signal(how)
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def sql(self, text: str) -> None:
        with psycopg.connect(
            host=str(self.folder), user="hvdgrade", dbname="postgres", autocommit=True
        ) as c:
            c.execute(text)

    def database(self, name: str, template: str = "template1") -> str:
        """Make a database, and return its address."""
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql+psycopg://hvdgrade@/{name}?host={self.folder}"


def folder_of_programs() -> Path:
    """Return the folder of the newest PostgreSQL of this machine."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    found = shutil.which("postgres")
    return places[-1] if places else Path(found).resolve().parent if found else Path("/nowhere")


def why_not() -> str:
    """Return why no server can run on this machine; empty if one can."""
    place = folder_of_programs()
    missing = [name for name in PROGRAMS if not (place / name).exists()]
    return f"needs the package postgresql (no {', '.join(missing)})" if missing else ""


def other_user() -> dict:
    """Return the options of Popen that start a program as another user than root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def end_with_parent() -> None:
    """Let the kernel stop this process at once when pytest ends, also by a signal."""
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Start a server whose files lie in an empty folder with a short path, and end it."""
    server = Server(folder)
    if user := other_user():
        os.chown(folder, user["user"], user["group"])
    code = server.run("initdb", "-D", str(folder / "data"), "-U", "hvdgrade", "-A", "trust", "-E", "UTF8",
                      "--no-locale", "--no-sync").wait(START_SECONDS)  # fmt: skip
    if code:
        raise RuntimeError(f"initdb failed:\n{(folder / 'log').read_text(errors='replace')}")
    try:
        server.start()
        yield server
    finally:
        if server.process and server.process.poll() is None:
            server.stop()
