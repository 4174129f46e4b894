"""Find the submissions of a class in a folder: who handed in, and which script.

Everything that was handed in becomes a submission. One that cannot be graded has a sentence that says why.
File names and contents are untrusted. This module follows no link, unpacks no archive, and neither parses
nor runs anything.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hvdgrade.batch.downloads import plain
from hvdgrade.batch.downloads.claim import Claim, Entry, entries_of
from hvdgrade.batch.downloads.problem import DownloadProblem
from hvdgrade.batch.downloads.recognise import PLATFORMS, recognise
from hvdgrade.batch.id_table import Student, comparable
from hvdgrade.submission.find_script import (
    SCRIPT,
    File,
    Unreadable,
    files_in,
    find_script,
    in_bytes,
    readable,
)
from hvdgrade.submission.script import NotGradable, Script

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ONLY_TEXT = f"it has no file, only text that was typed in: hand in one file named {SCRIPT}."


@dataclass(frozen=True)
class Submission:
    """The submission of one student.

    Attributes:
        name: the student's id as a safe file name. No two submissions have the same name.
        student: the student.
        script: the script; None if there is none.
        problem: one sentence that says why it cannot be graded; "" if it can.
        unreadable: whether the disk or missing permissions cause the problem, and not the student.
    """

    name: str
    student: Student
    script: Script | None = None
    problem: str = ""
    unreadable: bool = False

    @property
    def id(self) -> str:
        """The id of the student."""
        return self.student.id

    @property
    def source(self) -> bytes:
        """The bytes of the script; empty if there is none."""
        return self.script.source if self.script else b""


@dataclass(frozen=True)
class ClassFolder:
    """What a folder of a class contains.

    Attributes:
        submissions: the submissions, sorted by id.
        platform: the platform that made the folder, in words.
        unlisted: the ids of students who are not in the instructor's table of ids.
    """

    submissions: list[Submission]
    platform: str
    unlisted: list[str]


def find(
    folder: Path,
    platform: str | None = None,
    ids: Mapping[str, str] | None = None,
    without: Path | None = None,
) -> ClassFolder:
    """Find the submissions in a folder.

    Args:
        platform: name of the platform, from PLATFORMS. Default: None, it is recognised.
        ids: the instructor's table, `comparable` name of a file or folder -> student id. The platform's own
            id may take the place of the name. Default: None, the ids of the platform.
        without: a file that no student handed in, although it may lie in the folder. Default: None.

    Raises:
        DownloadProblem: the folder, or a file of the platform in it, cannot be understood.
        OSError: the folder cannot be read.
    """
    without = without and without.absolute()
    entries = [entry for entry in entries_of(folder) if entry.path.absolute() != without]
    found, claims = recognise(folder, entries, platform, ids or ())
    if found == "plain" and not (platform or ids):
        check_level(folder, entries)
    by_student: dict[str, list[tuple[Entry, Claim]]] = {}
    unlisted = set()
    for entry in entries:
        for claim in claims[entry.name]:
            id = listed_id(entry, claim, ids or {})
            if ids and id is None:
                unlisted.add(readable(claim.id))
            by_student.setdefault(id or claim.id, []).append((entry, claim))
    submissions = [submission(id, parts) for id, parts in by_student.items()]
    return ClassFolder(distinct(submissions), PLATFORMS[found].TITLE, sorted(unlisted))


def check_level(folder: Path, entries: list[Entry]) -> None:
    """Check that a folder is not one level above the folder of the class.

    Raises:
        DownloadProblem: it holds a single folder that holds several submissions or a download.
    """
    if len(entries) != 1 or not entries[0].is_folder:
        return
    try:
        inner = entries_of(entries[0].path)
    except OSError:  # the submission of this student reports it
        return
    if any(entry.name.lower().startswith("assessment") for entry in inner if not entry.is_folder):
        return
    count = sum(map(holds_script, inner))
    if count > 1 or recognise(entries[0].path, inner)[0] != "plain":
        below = folder / readable(entries[0].name)
        scripts = f"{count} script{'s' * (count != 1)}"
        raise DownloadProblem(
            f"{folder} holds a single folder with {scripts}: did you mean {below}?"
        )


def holds_script(entry: Entry) -> bool:
    """Return whether an entry is a script, or a folder that holds one."""
    try:
        return any(file.is_script for file in files_in(File(entry.path, entry.name)))
    except NotGradable:  # a link, too many files, or missing permissions
        return False


def listed_id(entry: Entry, claim: Claim, ids: Mapping[str, str]) -> str | None:
    """Return a student's id in the instructor's table, or None if it has none."""
    for name in (entry.name, plain.without_ending(entry.name), claim.id):
        if id := ids.get(comparable(readable(name))):
            return id
    return None


def submission(id: str, parts: list[tuple[Entry, Claim]]) -> Submission:
    """Return the submission of a student."""
    claims = [claim for _, claim in parts]
    last = max(claim.sent for claim in claims)
    counts = [
        File(entry.path, claim.file, label(entry, claim, len(parts)))
        for entry, claim in parts
        if claim.sent == last and (claim.file or entry.is_folder)
    ]
    earlier = [
        readable(entry.name)
        for entry, claim in parts
        if claim.sent != last and (claim.file or entry.is_folder)
    ]
    script, problem, unreadable = None, "", False
    try:
        if not counts:
            raise NotGradable(ONLY_TEXT)
        script = find_script(counts)
    except NotGradable as error:
        problem, unreadable = str(error), isinstance(error, Unreadable)
    # The instructor's table gives an id that the platform did not issue.
    issued = all(claim.id == id for claim in claims)
    student = Student(
        readable(id),
        readable(next((claim.name for claim in claims if claim.name), "")),
        readable(next((claim.email for claim in claims if claim.email), "")),
        claims[0].platform if issued else "",
        tuple(readable(entry.name) for entry, _ in parts),
        (*(script.left_out if script else ()), *earlier),
    )
    return Submission(safe_name(claims[0].id), student, script, problem, unreadable)


def label(entry: Entry, claim: Claim, parts: int) -> str:
    """Return what messages call a part of a submission; "" for the name that the student gave it.

    Args:
        parts: the number of parts of the submission.
    """
    if entry.is_folder:
        return entry.name if parts > 1 and not claim.platform else ""
    # The file of a plain folder is the whole submission, whatever its name is.
    return entry.name if claim.file == SCRIPT and not claim.platform else ""


def distinct(submissions: list[Submission]) -> list[Submission]:
    """Return the submissions sorted by id, with names that differ on every file system."""
    # The file system of OUT may not distinguish Ada and ada.
    count = Counter(submission.name.lower() for submission in submissions)
    submissions = [
        replace(submission, name=hashed(submission.id))
        if count[submission.name.lower()] > 1
        else submission
        for submission in submissions
    ]
    return sorted(submissions, key=lambda submission: submission.id)


def safe_name(name: str) -> str:
    """Return a safe file name: `name` if it is plain, otherwise its plain characters, "~" and a hash."""
    return name if PLAIN_NAME.fullmatch(name) else hashed(name)


def hashed(name: str) -> str:
    """Return the plain characters of a file name, "~" and a hash of the whole name."""
    plain_part = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:60].lstrip(".-")
    return f"{plain_part}~{hashlib.sha256(in_bytes(name)).hexdigest()[:16]}"
