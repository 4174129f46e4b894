"""Find and read the `answers.json` of each learner, in home folders or in the download of a platform.

The files are untrusted, because learners can write anything into them, also while they are read. No link is
followed, sizes and numbers are limited, and whether an answer is right is computed again.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from hvdgrade import HvdgradeError
from hvdgrade.batch.downloads.claim import Claim, entries_of
from hvdgrade.batch.downloads.claim import Entry as Part
from hvdgrade.batch.downloads.recognise import recognise
from hvdgrade.batch.id_table import Student
from hvdgrade.submission.find_script import readable
from hvdlab.course import workbook
from hvdlab.course.answers_file import (
    Entry,
    OpenedHint,
    Prediction,
    QuizAnswer,
    Result,
    SolvedExercise,
    WorkbookError,
)

NAME = re.compile(r"answers[^/]{0,40}\.json")  # a browser or a platform may have added a number
MAX_BYTES = 4 << 20  # a learner who does everything needs less than a tenth of it
MAX_DEPTH, MAX_FILES, MAX_CANDIDATES = 6, 50_000, 20
FIRST = ("notebooks", "work")  # folders that are looked into first
SKIPPED = ("__pycache__", "checkpoints", "node_modules", "runs", "site-packages")
ENVIRONMENT = {"conda-meta", "pyvenv.cfg"}  # in a folder of an environment of Python


class Unusable(HvdgradeError):
    """A learner has no file of answers that can be used. The message says why in one sentence."""


class Answers(TypedDict, total=False):
    """What the notebooks write, see `hvdlab.course.answers_file`."""

    predictions: list[Prediction]
    questions: list[QuizAnswer]
    exercises: list[SolvedExercise]
    hints: list[OpenedHint]
    results: list[Result]
    seed: int


@dataclass(frozen=True)
class Learner:
    """One learner.

    Attributes:
        student: who it is.
        entries: what the learner did, in the order of the file for each kind.
        problem: why there is no file that can be used, in one sentence; "" if there is one.
    """

    student: Student
    entries: tuple[Entry, ...] = ()
    problem: str = ""


def find(folder: Path, platform: str | None = None) -> list[Learner]:
    """Return the learners of a class, sorted by id.

    Args:
        folder: a folder or a file per learner, or what a learning platform's download contains.
        platform: the platform, of `recognise.PLATFORMS`. Default: None, it is recognised.

    Raises:
        DownloadProblem: a file of the platform in the folder cannot be understood.
        OSError: the folder cannot be read.
    """
    parts = entries_of(folder)
    _, claims = recognise(folder, parts, platform)
    by_learner: dict[str, list[tuple[Part, Claim]]] = {}
    for part in parts:
        for claim in claims[part.name]:
            id = claim.id if claim.platform else claim.id.removesuffix(".json")
            by_learner.setdefault(id, []).append((part, claim))
    return sorted(
        (_learner(id, own) for id, own in by_learner.items()), key=lambda one: one.student.id
    )


def _learner(id: str, own: list[tuple[Part, Claim]]) -> Learner:
    claim = max((claim for _, claim in own), key=lambda claim: claim.sent)
    student = Student(readable(id), readable(claim.name), readable(claim.email), claim.platform)
    newest = [part.path for part, one in own if one.sent == claim.sent]
    found, problems = [], []
    try:
        for data in (data for path in newest for data in _candidates(path)):
            try:
                found.append(parse(data))
            except Unusable as error:
                problems.append(str(error))
    except OSError as error:
        problems.append(f"a folder cannot be read ({error.strerror})")
    if not found:
        return Learner(student, problem=(problems or ["it has no answers.json"])[0])
    # Copies may be older. The one with the latest entry counts.
    return Learner(student, max(found, key=lambda entries: max(one.time for one in entries)))


def _candidates(path: Path) -> Iterator[bytes]:
    """Yield the content of each file that may be one of answers, first of those in notebooks/work."""
    if not path.is_dir() or path.is_symlink():
        if path.suffix == ".json":
            yield _content(str(path))
        return
    seen = found = 0
    for place, folders, files, at in os.fwalk(
        path
    ):  # follows no link, and sees if one is put there
        depth = len(Path(place).relative_to(path).parts)
        seen += len(folders) + len(files)
        is_environment = ENVIRONMENT & {*folders, *files}
        folders[:] = [
            name
            for name in sorted(folders, key=lambda name: (name not in FIRST, name))
            if depth < MAX_DEPTH and not name.startswith(".") and name not in SKIPPED
        ] * (not is_environment)
        for name in sorted(filter(NAME.fullmatch, files)):
            found += 1
            yield _content(name, at)
        if seen > MAX_FILES or found >= MAX_CANDIDATES:
            return


def _content(name: str, folder: int | None = None) -> bytes:
    """Return the content of a plain file, relative to an open folder; b"" if it is no plain file."""
    try:
        # NONBLOCK: opening a named pipe would otherwise wait for a process that writes to it.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return b""
    with open(file, "rb") as opened:
        return opened.read(MAX_BYTES + 1) if stat.S_ISREG(os.fstat(file).st_mode) else b""


@cache
def _adapter() -> TypeAdapter:
    return TypeAdapter(Answers)


def parse(data: bytes) -> tuple[Entry, ...]:
    """Return the entries of a file of answers. Whether an answer is right is computed again.

    Raises:
        Unusable: the file is too large, is none of answers, or has no entry.
    """
    if len(data) > MAX_BYTES:
        raise Unusable(f"its answers.json has more than {MAX_BYTES >> 20} MB")
    try:
        answers = _adapter().validate_json(data, strict=True)
    except ValueError:  # the message would quote the file
        raise Unusable("its answers.json is not a file that the notebooks wrote") from None
    seed = answers.get("seed")
    entries = (
        *answers.get("predictions", ()),
        *(_judged(one, seed) for one in answers.get("questions", ())),
        *answers.get("exercises", ()),
        *answers.get("hints", ()),
        *answers.get("results", ()),
    )
    if not entries:
        raise Unusable("its answers.json is empty")
    return entries


def _judged(answer: QuizAnswer, seed: int | None) -> QuizAnswer:
    """Return an answer with our own judgement; an answer to a question that does not exist is wrong."""
    try:
        asked = _questions(answer.lab, seed)
        right = (
            asked[answer.number - 1].wrong(answer.answer) is None if answer.number > 0 else False
        )
    except (WorkbookError, IndexError, ValueError, OverflowError):
        right = False
    return replace(answer, right=right)


@cache
def _questions(lab: int, seed: int | None) -> list[workbook.Question]:
    return workbook.questions(lab, seed)
