"""GitHub Classroom: ASSIGNMENT-submissions/ with a clone of the repository ASSIGNMENT-LOGIN per student.

GitHub retired this service on 28 August 2026. This module reads the folders that `gh classroom clone
student-repos` made before. If classroom_roster.csv, which GitHub Classroom offered for download, lies in such
a folder, the students have the identifiers and names of that file; otherwise the id is LOGIN.
"""

import csv
import os
from pathlib import Path

from hvdgrade.batch.downloads.claim import Claim, Claims, Download
from hvdgrade.batch.downloads.problem import DownloadProblem

TITLE = "GitHub Classroom"
ROSTER = "classroom_roster.csv"
ENDING = "-submissions"


def read(download: Download) -> Claims:
    """Return the student of each folder that is a clone of a repository.

    Raises:
        DownloadProblem: the roster cannot be read.
    """
    clones = [e.name for e in download.entries if e.is_folder and os.path.exists(e.path / ".git")]
    listed = clones and any(
        entry.name == ROSTER and not entry.is_folder for entry in download.entries
    )
    people = roster(download.folder / ROSTER) if listed else {}
    before = download.folder.resolve().name.removesuffix(ENDING) + "-"
    claims: Claims = {}
    for name in clones:
        login = name.removeprefix(before)
        known = [login] if login in people else [u for u in people if name.endswith(f"-{u}")]
        claims[name] = [people[known[0]] if len(known) == 1 else Claim(login, platform="github")]
    return claims | ({ROSTER: []} if listed else {})


def roster(path: Path) -> dict[str, Claim]:
    """Return the students of a roster: GitHub login -> student.

    Raises:
        DownloadProblem: it cannot be read.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error):
        raise DownloadProblem(
            f"{path} is not a UTF-8 CSV file: save it as UTF-8, as GitHub Classroom wrote it."
        ) from None
    return {
        row["github_username"]: Claim(row["identifier"], name=row.get("name") or "")
        for row in rows
        if row.get("github_username") and row.get("identifier")
    }
