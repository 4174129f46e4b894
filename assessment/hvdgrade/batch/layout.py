"""Where a batch keeps its files."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from hvdgrade import __version__

FOLDERS = ("results", "reports", "logs", "submissions", "running")


@dataclass(frozen=True)
class Settings:
    """The settings that are the same for all submissions of a batch.

    `limit` is the time limit of one grading in seconds. `call` identifies this call of
    `hvdgrade batch`, and is stored in each result that the call makes. `real_data` is True if
    CIFAR-10 itself is known to be available, not only the synthetic data set.
    """

    out: Path
    ranks: int
    profile: str
    rules_sha256: str
    limit: float
    require_sandbox: str | None = None
    call: str = ""
    real_data: bool = False


@dataclass(frozen=True)
class Task:
    """One submission to grade: the student's id, the name of its files, and the key of its result."""

    id: str
    name: str
    key: str


def key(source: bytes, settings: Settings) -> str:
    """Return a hash of everything that a result depends on.

    A batch keeps a result as long as this hash does not change.
    """
    facts = [
        hashlib.sha256(source).hexdigest(),
        settings.rules_sha256,
        settings.ranks,
        settings.profile,
        __version__,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def read_result(out: Path, name: str) -> dict:
    """Return the result that OUT has for a submission, or {} if it is missing or incomplete."""
    try:
        document = json.loads((out / "results" / f"{name}.json").read_text())
        return document if "batch" in document else {}
    except (OSError, ValueError, TypeError):
        return {}


def write_result(document: dict, task: Task, settings: Settings) -> None:
    result = json.dumps(document, indent=2) + "\n"
    write(settings.out / "results" / f"{task.name}.json", result.encode())


def write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and so that it survives a power failure."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:  # a full disk does not tell the file
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def folder_name(task: Task) -> str:
    """What the report calls a submission: its id, where a folder can have that name."""
    try:
        return task.id if len(os.fsencode(task.id)) < 200 else task.name
    except UnicodeEncodeError:  # in the encoding of this user's locale it cannot
        return task.name
