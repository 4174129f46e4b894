"""A class of students, and `hvdgrade batch` at work on it: for tests that end it in unkind ways."""

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil

from hvdgrade.batch import core_allocation

SUBMISSIONS = Path(__file__).parents[1] / "fixtures" / "submissions"
MOST_WORKERS = len(core_allocation.worker_slots(1, None, oversubscribe=False))  # on this machine
QUICK = (SUBMISSIONS / "exits_at_once" / "assessment.py").read_text()


class Class:
    """A folder of submissions, and the batch that grades it."""

    def __init__(self, folder: Path, data: Path | None = None):
        self.folder, self.out, self.data = folder / "class", folder / "out", data
        self.folder.mkdir()
        # A number that stands in the command line of what a submission starts, and nowhere else.
        self.mark = str(random.randrange(10**9, 10**10))

    def add(self, id: str, source: str = QUICK) -> None:
        (self.folder / id).mkdir()
        (self.folder / id / "assessment.py").write_text(source)

    def add_sleeper(self, id: str, seconds: int) -> None:
        self.add(id, f'import os\nos.execvp("sleep", ["sleep", "{seconds}.{self.mark}"])\n')

    def start(self, *arguments, cwd=None, before="", **environment) -> subprocess.Popen:
        """Start a batch; the batch's process runs the Python statements `before` first."""
        hvdgrade = ["-m", "hvdgrade.cli"]
        if before:
            hvdgrade = ["-c", f"{before}\nfrom hvdgrade.cli import main\nraise SystemExit(main())"]
        # -P: modules are looked for as the installed command `hvdgrade` does.
        command = [sys.executable, "-P", *hvdgrade, "batch", self.folder, "--out", self.out]
        return subprocess.Popen(
            [*map(str, command), "--profile", "dli", "-np", "1", *map(str, arguments)],
            env={
                **os.environ,
                **({"HVDLAB_DATA": str(self.data)} if self.data else {}),
                "HVDGRADE_TEST": self.mark,
                **environment,
            },
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def grade(self, *arguments, timeout=400, **options) -> subprocess.CompletedProcess:
        process = self.start(*arguments, **options)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def results(self) -> dict[str, dict]:
        """Student -> result. Twice the same student is an error."""
        results = {}
        for path in (self.out / "results").iterdir():
            document = json.loads(path.read_text())
            assert document["submission"]["id"] not in results
            results[document["submission"]["id"]] = document
        return results

    def files(self) -> dict[str, tuple]:
        """What identifies the very files of the results: a result that is written anew differs."""
        folder = self.out / "results"
        if not folder.exists():
            return {}
        whole = [path for path in folder.iterdir() if path.suffix == ".json"]
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in whole}

    def processes(self) -> list[psutil.Process]:
        """All that the batch started and that still runs."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("HVDGRADE_TEST") == self.mark
                if ours or any(self.mark in word for word in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def graders(self) -> list[psutil.Process]:
        """Those of its processes that grade one submission each: `hvdgrade run`."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):  # it has ended since
                if "run" in process.cmdline():
                    found.append(process)
        return found

    def wait_for(self, condition, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended while it was looked at
                if condition():
                    return
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.05)
