"""GitHub Classroom: ASSIGNMENT-submissions/ with a clone of the repository ASSIGNMENT-LOGIN per student.

`gh classroom clone student-repos` makes such a folder. If classroom_roster.csv, which GitHub Classroom offers
for download, lies in it, the students have the identifiers and names of that file; otherwise the id is LOGIN.
"""

import csv
import os
from pathlib import Path

from hvdgrade.batch.downloads.claim import Claim, Claims, Entry
from hvdgrade.batch.downloads.problem import DownloadProblem

TITLE = "GitHub Classroom"
ROSTER = "classroom_roster.csv"


def read(folder: Path, entries: list[Entry]) -> Claims:
    """Return the student of each folder that is a clone of a repository.

    Args:
        folder: the folder of the class.
        entries: its content.

    Raises:
        DownloadProblem: the roster cannot be read.
    """
    clones = [e.name for e in entries if e.is_folder and os.path.exists(e.path / ".git")]
    listed = clones and any(entry.name == ROSTER and not entry.is_folder for entry in entries)
    people = roster(folder / ROSTER) if listed else {}
    before = folder.resolve().name.removesuffix("-submissions") + "-"
    claims: Claims = {}
    for name in clones:
        login = name.removeprefix(before)
        known = [login] if login in people else [u for u in people if name.endswith(f"-{u}")]
        claims[name] = [people[known[0]] if len(known) == 1 else Claim(login, platform="github")]
    return claims | ({ROSTER: []} if listed else {})


def roster(path: Path) -> dict[str, Claim]:
    """Return the students of a roster: GitHub login -> student.

    Args:
        path: the file.

    Raises:
        DownloadProblem: it cannot be read.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error):
        raise DownloadProblem(
            f"{path} is not a UTF-8 CSV file: download it from GitHub Classroom again."
        ) from None
    return {
        row["github_username"]: Claim(row["identifier"], name=row.get("name") or "")
        for row in rows
        if row.get("github_username") and row.get("identifier")
    }
