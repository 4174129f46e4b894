"""The files of a batch, and what identifies a result.

The folder OUT of a batch contains:

    results/NAME.json      the result; written last, so if it exists, the other files exist, too
    reports/NAME.html      the result as a page for readers
    logs/NAME.log          the output of the grader
    submissions/NAME.py    the script as it was graded
    running/NAME.json      where the script is being graded now, so that a later batch can end that
    running/NAME.progress  what the grader reports meanwhile, if the settings want it
    students.json          the students whom the last batch found in DIR (see id_table.py)
    .regrade               the calls of a regrade that is not finished
    .lock                  locked by the batch that works in OUT
    slurm/                 what submitit and the Slurm jobs write
    index.html             the class as a page
    summary.csv            the class as a table
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from hvdgrade import __version__
from hvdgrade.result_document import NotAResult, ResultDocument, read

FOLDERS = ("results", "reports", "logs", "submissions", "running")
OUT_MODE = 0o770  # of new folders: a submission that runs as another user must not read the class


@dataclass(frozen=True)
class Settings:
    """The settings that are the same for all submissions of a batch.

    Attributes:
        out: the folder that receives all files.
        ranks: number of ranks of each submission.
        profile: name of the profile.
        rules_sha256: hash of the thresholds and of the version of the judging code.
        limit: time limit of one grading in seconds.
        require_sandbox: isolation level below which nothing is graded; None for no requirement.
        call: identifies this call of `hvdgrade batch`. Each result that the call makes contains it.
        real_data: whether CIFAR-10 itself is known to be available, not only the synthetic data set.
        hints: whether to look for likely mistakes in scripts that do not pass.
        progress: whether the grader reports its progress while it runs, in running/NAME.progress.
    """

    out: Path
    ranks: int
    profile: str
    rules_sha256: str
    limit: float
    require_sandbox: str | None = None
    call: str = ""
    real_data: bool = False
    hints: bool = False
    progress: bool = False


@dataclass(frozen=True)
class Task:
    """One submission to grade.

    Attributes:
        id: the student's id.
        name: name of the submission's files, without suffix.
        key: `key` of its result.
    """

    id: str
    name: str
    key: str


def key(source: bytes, settings: Settings) -> str:
    """Return a hash of everything that a result depends on.

    A batch keeps a result as long as this hash does not change.

    Args:
        source: the bytes of the script.
    """
    facts = [
        hashlib.sha256(source).hexdigest(),
        settings.rules_sha256,
        settings.ranks,
        settings.profile,
        __version__,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def read_result(out: Path, name: str) -> ResultDocument:
    """Return the result that OUT has for a submission, or {} if it is missing or incomplete."""
    try:
        document = read((out / "results" / f"{name}.json").read_bytes())
        return document if "batch" in document else {}
    except (OSError, NotAResult):
        return {}


def write_result(document: ResultDocument, task: Task, settings: Settings) -> None:
    """Write a result. It must be the last file of a grading, because its existence means "graded".

    Raises:
        OSError: it cannot be written.
    """
    result = json.dumps(document, indent=2) + "\n"
    write(settings.out / "results" / f"{task.name}.json", result.encode())


def write(path: Path, data: bytes) -> None:
    """Write a file completely or not at all, so that it also survives a power failure.

    Raises:
        OSError: it cannot be written. The error names the file.
    """
    unfinished = path.with_name(f".{path.name}.part")
    try:
        with open(unfinished, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:  # the error of a full disk names no file
        unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def folder_name(task: Task) -> str:
    """Return the name by which the report calls a submission: its id if a folder can have that name."""
    try:
        return task.id if len(os.fsencode(task.id)) < 200 else task.name
    except UnicodeEncodeError:  # the encoding of this user's locale does not have its letters
        return task.name
