"""A class of students, and functions that run `hvdgrade batch` on it, for tests that kill the batch."""

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
    """A folder of submissions, and the batch that grades them."""

    def __init__(self, folder: Path, data: Path | None = None):
        self.folder, self.out, self.data = folder / "class", folder / "out", data
        self.folder.mkdir()
        # A number in the command line of the processes of a submission, by which they are found.
        self.mark = str(random.randrange(10**9, 10**10))

    def add(self, id: str, source: str = QUICK) -> None:
        (self.folder / id).mkdir()
        (self.folder / id / "assessment.py").write_text(source)

    def add_sleeper(self, id: str, seconds: int) -> None:
        self.add(id, f'import os\nos.execvp("sleep", ["sleep", "{seconds}.{self.mark}"])\n')

    def start(self, *arguments, cwd=None, before="", **environment) -> subprocess.Popen:
        """Start a batch, whose process first runs the Python statements `before`."""
        hvdgrade = ["-m", "hvdgrade.cli"]
        if before:
            hvdgrade = ["-c", f"{before}\nfrom hvdgrade.cli import main\nraise SystemExit(main())"]
        # -P: import modules like the installed command `hvdgrade`.
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
        """Return {student: result}. Two results of the same student are an error."""
        results = {}
        for path in (self.out / "results").iterdir():
            document = json.loads(path.read_text())
            assert document["submission"]["id"] not in results
            results[document["submission"]["id"]] = document
        return results

    def files(self) -> dict[str, tuple]:
        """Return what identifies the files of the results. It differs for a result that was written again."""
        folder = self.out / "results"
        if not folder.exists():
            return {}
        whole = [path for path in folder.iterdir() if path.suffix == ".json"]
        return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in whole}

    def processes(self) -> list[psutil.Process]:
        """Return all processes that the batch has started and that still run."""
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
        """Return the processes `hvdgrade run` of the batch, each of which grades one submission."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):  # it has ended
                if "run" in process.cmdline():
                    found.append(process)
        return found

    def wait_for(self, condition, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if condition():
                    return
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.05)
