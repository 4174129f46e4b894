"""Gives a submission a folder of its own, starts it there, and leaves nothing behind.

First version, tier "processes": a fresh folder, a clean environment, its own session, no core dumps,
a limit on file sizes, and every descendant ended, also those that left the session. File system and
network are not isolated yet; the report names the tier.
"""

import ctypes
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from hvdlab import launch

TIER = "processes"
SCRIPT = "assessment.py"
MAX_SCRIPT_BYTES = 200_000
MAX_FILE_BYTES = 1 << 30
PR_SET_CHILD_SUBREAPER = 36


class NotGradable(Exception):
    """The submission cannot even be started: one sentence says why. No attempt is lost."""


def read_script(path: Path) -> bytes:
    """The bytes of a submission: `path`, or `assessment.py` in the folder `path`. No links."""
    if path.is_dir():
        path = path / SCRIPT
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotGradable(f"{path} does not exist: hand in one file named {SCRIPT}.") from None
    except OSError as error:
        raise NotGradable(
            f"{path} cannot be read ({error.strerror}): hand in a plain file."
        ) from None
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise NotGradable(f"{path} is not a plain file: hand in one file named {SCRIPT}.")
        source = opened.read(MAX_SCRIPT_BYTES + 1)
    if len(source) > MAX_SCRIPT_BYTES:
        raise NotGradable(
            f"{path} is larger than {MAX_SCRIPT_BYTES} bytes: a script is expected, no data."
        )
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if getattr(error, "lineno", None) else ""
        raise NotGradable(
            f"{path.name} is not valid Python{line}: {getattr(error, 'msg', error)}. "
            f"Run 'python {path.name}' and mend what it says."
        ) from None
    return source


class Jail:
    """A context in which one submission runs; on leaving it, processes and files are gone.

    Args:
        source: the submission's bytes, as `read_script` gives them.
        ranks: number of processes to start.
        data: folder with the data sets, given to the submission as `HVDLAB_DATA`.
        arguments: of its command line; a submission gets none.
    """

    def __init__(self, source: bytes, ranks: int, data: Path, arguments: tuple[str, ...] = ()):
        self.source, self.ranks, self.data, self.arguments = source, ranks, data, arguments

    def __enter__(self) -> "Jail":
        # Orphans of the submission become our children instead of init's, so that none gets lost.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.bystanders = set(psutil.Process().children(recursive=True))
        self.folder = Path(tempfile.mkdtemp(prefix="hvdgrade-"))
        # Open MPI's shared memory: in memory where there is such a place, in a folder that we remove.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.shared_memory = Path(tempfile.mkdtemp(prefix="hvdgrade-", dir=memory))
        self.records = self.folder / "records"
        for folder in ("work", "home", "tmp", "records"):
            (self.folder / folder).mkdir()
        (self.folder / "work" / SCRIPT).write_bytes(self.source)
        return self

    def start(self) -> subprocess.Popen:
        """`mpirun -np N python assessment.py`, its two output streams joined and tagged by rank."""
        mpirun, *rest = launch.command(self.ranks, SCRIPT, *self.arguments)
        process = subprocess.Popen(
            [mpirun, "--output", "tag", *rest],
            cwd=self.folder / "work",
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
        return process

    def environment(self) -> dict[str, str]:
        """What the submission sees: nothing of the grader's own environment but where Python is."""
        python = Path(sys.executable).parent  # of the virtual environment, where mpirun is too
        return {
            **launch.environment(self.ranks),
            "PATH": f"{python}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            "HVDLAB_DATA": str(self.data),
            "HVDLAB_RUN_DIR": str(self.records),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",  # SIGABRT prints each rank's Python stack
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMPI_MCA_btl_sm_backing_directory": str(self.shared_memory),
        }

    def processes(self) -> list[psutil.Process]:
        """Every process that the submission started and that still runs."""
        return [p for p in psutil.Process().children(recursive=True) if p not in self.bystanders]

    def rank_processes(self) -> dict[int, psutil.Process]:
        """The ranks' processes, as far as they run: rank -> process."""
        ranks: dict[int, psutil.Process] = {}
        for process in self.processes():
            try:
                rank = process.environ().get("OMPI_COMM_WORLD_RANK", "")
            except psutil.Error:
                continue
            if rank.isdigit():
                ranks.setdefault(int(rank), process)  # parents come before their children
        return ranks

    def kill(self) -> int:
        """End every process of the submission; return how many could not be ended (0)."""
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                try:
                    process.kill()
                except psutil.Error:
                    pass
            psutil.wait_procs(left, timeout=1)
        return len(left)

    def __exit__(self, *exception) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.shared_memory, ignore_errors=True)
