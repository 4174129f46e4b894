"""Gradescope, "Export Submissions": folders submission_NUMBER, and submission_metadata.yml with the students.

A submission of a group belongs to each of its members, and is graded once for each.
"""

from pathlib import Path

import yaml

from hvdgrade.batch.downloads.claim import Claim, Claims, Download
from hvdgrade.batch.downloads.problem import DownloadProblem

TITLE = "Gradescope"
METADATA = "submission_metadata.yml"


def read(download: Download) -> Claims:
    """Return the students of each submission that the metadata names.

    Raises:
        DownloadProblem: the metadata cannot be read.
    """
    if not any(entry.name == METADATA and not entry.is_folder for entry in download.entries):
        return {}
    metadata = load(download.folder / METADATA)
    claims: Claims = {METADATA: []}
    for entry in download.entries:
        about = metadata.get(entry.name)
        people = about.get(":submitters") if isinstance(about, dict) else None
        if students := [claim(person) for person in people or [] if isinstance(person, dict)]:
            claims[entry.name] = [student for student in students if student.id]
    return {name: found for name, found in claims.items() if found or name == METADATA}


def load(path: Path) -> dict:
    """Return the content of the metadata, in which every value is text.

    Raises:
        DownloadProblem: it cannot be read.
    """
    try:
        # BaseLoader makes text of every value, so that the id 007 keeps its zeros, and creates no objects.
        metadata = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        raise DownloadProblem(f"{path} is not a file of Gradescope: export the submissions again.")
    return metadata


def claim(person: dict) -> Claim:
    """Return a student. Without a student id, the e-mail address or else the name is the id."""
    sid, name, email = (str(person.get(key) or "") for key in (":sid", ":name", ":email"))
    return Claim(sid or email or name, name=name, email=email, platform="gradescope")
