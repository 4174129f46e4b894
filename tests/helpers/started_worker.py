"""A worker of the service as a process of its own, for tests that follow it, cut it off and end it."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from hvdgrade.batch import cleanup


class Started:
    """A worker that was started, and everything that it has started.

    Args:
        server: has the address `url` and the worker's secret `token`.
    """

    def __init__(self, folder: Path, data: Path, server: Any) -> None:
        self.spool, self.data, self.server = folder / "spool", data, server
        self.log = folder / "worker.log"
        self.mark = str(random.randrange(10**9, 10**10))  # in its environment
        self.process: subprocess.Popen | None = None

    def sleeper(self, seconds: int) -> str:
        """Return a script whose process can be found by the mark in its command line."""
        return f'import os\nos.execvp("sleep", ["sleep", "{seconds}.{self.mark}"])\n'

    def start(
        self, *arguments: object, before: str = "", host: Any = None, **environment: str
    ) -> None:
        """Start a worker, whose process first runs the Python statements `before`.

        Args:
            host: host of two_hosts.py on which it runs; None for this machine.
        """
        main = f"{before}\nfrom hvdgrade.cli import main\nraise SystemExit(main())"
        command = [sys.executable, "-P", "-c", main, "worker", "--server", self.server.url]
        command += ["--spool", self.spool, "-np", 1, *arguments]
        given = {"HVDLAB_DATA": str(self.data), "HVDGRADE_TOKEN": self.server.token}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                host.enter(*command) if host else [*map(str, command)],
                env={**os.environ, **given, "HVDGRADE_TEST": self.mark, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def end(self, number: int = signal.SIGTERM, seconds: float = 100) -> int:
        """Send a signal to the worker, and return its exit code."""
        # `nsenter` passes no signal to the worker on another host, which is its only child.
        main = psutil.Process(self.process.pid)
        [worker] = main.children() if main.name() == "nsenter" else [main]
        worker.send_signal(number)
        return self.process.wait(seconds)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the worker and of what it has started."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get("HVDGRADE_TEST") == self.mark
                if ours or any(self.mark in word for word in process.cmdline()):
                    found.append(process)
        return found

    def sleeps(self) -> bool:
        """Return whether a submission of `sleeper` runs."""
        return any(process.name() == "sleep" for process in self.processes())

    def wait_for(self, condition, seconds: float = 90) -> None:
        """Wait until a condition is true."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):
                if condition():
                    return
            assert time.monotonic() < deadline, f"it did not happen:\n{self.said()}"
            time.sleep(0.05)

    def files(self) -> list[str]:
        """Return what the spool holds, apart from its lock and what Slurm's jobs wrote."""
        found = [path.relative_to(self.spool) for path in self.spool.rglob("*") if path.is_file()]
        return [str(path) for path in found if path.parts[0] not in (".lock", "slurm")]

    def clear_up(self) -> None:
        """End all processes, and remove what they left."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self.spool.exists():
            cleanup.end_left_over(self.spool)
