"""Classroom 50: a folder with a clone of the repository CLASSROOM-ASSIGNMENT-LOGIN per student.

`gh teacher download` makes such a folder, which it calls CLASSROOM-ASSIGNMENT_submissions_TIME, and writes
scores.csv with the logins and names of all students into it. Each repository has a .classroom50.yaml with the
names of the classroom and of the assignment. The repository of a group has the login of one member only.

Each of the three parts of a repository's name may contain hyphens, so a single name does not say where the
login begins. But the names of all repositories of an assignment begin with the same CLASSROOM-ASSIGNMENT-.

Source: cli/gh-teacher/internal/download/download.go of https://github.com/foundation50/classroom50
"""

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import yaml

from hvdgrade.batch.downloads import github_classroom
from hvdgrade.batch.downloads.claim import Claim, Claims, Download
from hvdgrade.batch.downloads.problem import DownloadProblem
from hvdgrade.submission.find_script import readable

TITLE = "Classroom 50"
SCORES = "scores.csv"
COLUMNS = {"username", "first_name", "last_name", "email", "submission_tag"}
MARKERS = (".classroom50.yaml", ".classroom50.yml")
NAME_OF_DOWNLOAD = re.compile(r"(.+)_submissions_[0-9]{4}(?:_[0-9]{2}){2}_T(?:_[0-9]{2}){3}")
LARGEST_MARKER = 4096  # bytes


def read(download: Download) -> Claims:
    """Return the student of each folder that is a repository of the assignment.

    Raises:
        DownloadProblem: the folders do not say where the logins begin, or belong to several assignments.
    """
    people = students(download)
    folders = [entry for entry in download.entries if entry.is_folder]
    marked = {entry.name: first for entry in folders if (first := marker(entry.path))}
    cloned = [e.name for e in folders if e.name in marked or os.path.lexists(e.path / ".git")]
    names = cloned or [entry.name for entry in folders]
    named = NAME_OF_DOWNLOAD.fullmatch(download.folder.resolve().name)
    certain = download.is_named or bool(people or named) or 2 * len(marked) > len(folders)
    if not names or not (certain or (cloned and is_new(download))):
        return {}
    # From the best evidence to the worst. A set with several beginnings decides nothing.
    evidence = (
        from_logins(names, {*people, *download.logins}),
        {f"{named[1]}-"} if named else set(),
        most_frequent(first for name, first in marked.items() if name.startswith(first)),
        in_common(names),
        {""} if download.logins.issuperset(names) else set(),
    )
    decided = [found for found in evidence if len(found) == 1]
    if not decided and not certain:
        return {}
    if not decided:
        raise DownloadProblem(
            f"{download.folder} does not say where the login begins in {readable(names[0])}: download the "
            f"assignment again, so that the folder has {SCORES} of Classroom 50, or list the logins with "
            "--ids."
        )
    (first,) = decided[0]
    if others := [name for name in cloned if not name.startswith(first)]:
        raise DownloadProblem(
            f"{download.folder} has repositories of several assignments, for example {readable(others[0])} "
            f"next to {readable(first)}LOGIN: put each assignment into a folder of its own."
        )
    logins = {name: name.removeprefix(first) for name in names if name.startswith(first)}
    claims: Claims = {
        name: [people.get(login, Claim(login, platform="github"))]
        for name, login in logins.items()
        if login
    }
    return claims | ({SCORES: []} if people else {})


def is_new(download: Download) -> bool:
    """Return whether a folder of clones has neither the name nor the roster of GitHub Classroom."""
    names = {entry.name for entry in download.entries}
    return github_classroom.ROSTER not in names and not download.folder.resolve().name.endswith(
        github_classroom.ENDING
    )


def students(download: Download) -> dict[str, Claim]:
    """Return the students in scores.csv: login in lower case -> student; {} without such a file."""
    if not any(entry.name == SCORES and not entry.is_folder for entry in download.entries):
        return {}
    try:
        with open(download.folder / SCORES, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            rows = list(table) if COLUMNS <= set(table.fieldnames or []) else []
    except (UnicodeDecodeError, csv.Error):
        return {}  # a student's file of the same name
    return {
        row["username"].lower(): replace(
            Claim(row["username"], platform="github"),
            name=" ".join(
                filter(None, (unguarded(row["first_name"]), unguarded(row["last_name"])))
            ),
            email=unguarded(row["email"]),
        )
        for row in rows
        if row["username"]
    }


def unguarded(cell: str | None) -> str:
    """Return a cell of scores.csv without the "'" that protects spreadsheets from a formula.

    Args:
        cell: the cell; None if the row is too short.
    """
    return re.sub(r"\A'(?=[=+\-@\t\r])", "", cell or "")


def marker(folder: Path) -> str:
    """Return CLASSROOM-ASSIGNMENT- from the .classroom50.yaml of a repository; "" if it has none.

    A student can change this file, so the files of all repositories decide together.
    """
    for name in MARKERS:
        try:
            file = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(file, "rb") as opened:
                # BaseLoader makes text of every value, and creates no objects.
                about = yaml.load(opened.read(LARGEST_MARKER), Loader=yaml.BaseLoader)
        except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError):
            continue
        words = (
            [about.get(key) for key in ("classroom", "assignment")]
            if isinstance(about, dict)
            else []
        )
        if words and all(isinstance(word, str) and word for word in words):
            return f"{words[0]}-{words[1]}-".lower()
    return ""


def from_logins(names: list[str], logins: Iterable[str]) -> set[str]:
    """Return the beginnings after which most of the names are a known login."""
    ends = [f"-{login.lower()}" for login in logins]
    return most_frequent(
        name[: len(name) - len(end) + 1]
        for name in names
        for end in ends
        if name.endswith(end) and has_two_parts(name[: len(name) - len(end) + 1])
    )


def in_common(names: list[str]) -> set[str]:
    """Return the longest beginning up to a hyphen that all names have; empty if it cannot be known."""
    common = os.path.commonprefix(names)
    beginning = common[: common.rfind("-") + 1]
    return {beginning} if len(names) > 1 and has_two_parts(beginning) else set()


def has_two_parts(beginning: str) -> bool:
    """Return whether a beginning can be CLASSROOM-ASSIGNMENT-."""
    return re.fullmatch(r"[^-].*-[^-].*-", beginning) is not None


def most_frequent(beginnings: Iterable[str]) -> set[str]:
    """Return the most frequent values; several if they are equally frequent."""
    counts = Counter(beginnings)
    return {value for value, count in counts.items() if count == max(counts.values())}
