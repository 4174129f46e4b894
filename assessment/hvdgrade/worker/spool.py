"""What a worker stores on its disk: the gradings that it holds, and results that are not yet sent.

The folder is laid out like the folder OUT of a batch (see batch/layout.py), with one more folder, `leases`. A
worker that is started again after a kill -9 finds there what it held. Only the worker's user can enter it.
"""

import base64
import binascii
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hvdgrade import HvdgradeError
from hvdgrade.batch.layout import FOLDERS, Settings, Task, read_result, write
from hvdgrade.profiles import Profile
from hvdgrade.result_document import ResultDocument
from hvdgrade.sandbox.tiers import TIERS
from hvdgrade.worker import live_log
from hvdlab.system import file_system

LOG_BYTES = 16_000  # of the end of the grader's output
NAME = re.compile(r"[\w-]{1,100}")  # of a submission


class BadLease(HvdgradeError):
    """The answer of the server to a claim is not a grading."""


class InUse(HvdgradeError):
    """Another worker uses the spool."""


@dataclass(frozen=True)
class Lease:
    """A grading that this worker holds, as the server's answer to a claim describes it.

    Attributes:
        token: shows the server that this worker holds the grading.
        limit_s: time limit of the grading in seconds.
        require_sandbox: isolation level below which nothing is graded; None for no requirement.
        rank: place in the order of the queue; 0 comes first.
    """

    grading: int
    token: str
    submission: str
    profile: str
    ranks: int
    limit_s: float
    require_sandbox: str | None = None
    hints: bool = False
    rank: int = 0

    @property
    def task(self) -> Task:
        """Its files in the spool."""
        return Task(self.submission, f"grading-{self.grading}", "")

    @property
    def call(self) -> str:
        """What its result contains, and that of an earlier lease of the same grading does not."""
        return hashlib.sha256(self.token.encode()).hexdigest()[:16]

    def settings(self, out: Path, rules: Profile, least: str | None) -> Settings:
        """Return how it is graded, at least in the isolation level `least`."""
        needed = [tier for tier in (self.require_sandbox, least) if tier]
        return Settings(
            out,
            self.ranks,
            rules.name,
            rules.rules_sha256,
            self.limit_s,
            min(needed, key=TIERS.index, default=None),
            call=self.call,
            hints=self.hints,
            progress=True,
        )


def read_claim(answer: dict) -> tuple[Lease, bytes]:
    """Return the grading in the server's answer to a claim, and the script.

    Raises:
        BadLease: the answer is something else.
    """
    try:
        lease = Lease(
            int(answer["grading"]),
            str(answer["token"]),
            str(answer["submission"]),
            str(answer["profile"]),
            int(answer["ranks"]),
            float(answer["limit_s"]),
            answer.get("require_sandbox") or None,
            bool(answer.get("hints")),
            int(answer.get("rank") or 0),
        )
        script = base64.b64decode(answer["script"], validate=True)
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise BadLease(f"the server's answer to a claim is no grading: {error!r}") from None
    named = NAME.fullmatch(lease.submission) and lease.require_sandbox in (None, *TIERS)
    if not named or lease.ranks < 1 or not lease.limit_s > 0:
        raise BadLease(f"grading {lease.grading} has values that this version does not know")
    return lease, script


class Spool:
    """The folder.

    Raises:
        OSError: it cannot be made or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        for name in (*FOLDERS, "leases"):
            (path / name).mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold a lock that only one worker at a time can hold. Raises InUse."""

        def busy() -> None:
            raise InUse(f"another worker uses {self.path}: give each worker its own --spool.")

        with file_system.locked(self.path / ".lock", busy):
            yield

    def add(self, lease: Lease, script: bytes) -> None:
        """Store a grading before it starts.

        Raises:
            OSError: the disk is full.
        """
        write(self.path / "submissions" / f"{lease.task.name}.py", script)
        write(self.lease_file(lease), json.dumps(asdict(lease)).encode())

    def lease_file(self, lease: Lease) -> Path:
        return self.path / "leases" / f"{lease.task.name}.json"

    def held(self) -> Iterator[Lease]:
        """Yield the gradings that an earlier worker held when it ended."""
        for file in sorted((self.path / "leases").glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                yield Lease(**json.loads(file.read_text(encoding="utf-8")))

    def result(self, lease: Lease) -> ResultDocument | None:
        """Return the result of a grading, or None if the spool has none of this lease."""
        document = read_result(self.path, lease.task.name)
        return document if document.get("batch", {}).get("call") == lease.call else None

    def end_of_log(self, lease: Lease) -> str:
        """Return the end of the grader's output."""
        return live_log.end_of(self.path / "logs" / f"{lease.task.name}.log", LOG_BYTES)

    def progress(self, lease: Lease) -> str:
        """Return the last lines of what the grader reports while it runs."""
        return live_log.lines(self.path / "running" / f"{lease.task.name}.progress")

    def forget(self, lease: Lease) -> None:
        """Remove the files of a grading, the lease last."""
        for folder in ("results", "reports", "logs", "submissions"):
            for file in (self.path / folder).glob(f"{lease.task.name}.*"):
                file.unlink(missing_ok=True)
        self.lease_file(lease).unlink(missing_ok=True)
