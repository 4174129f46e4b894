"""Score payloads of LTI's Assignment and Grade Services 2.0, one for each submission.

    POST {lineitem}/scores        Content-Type: application/vnd.ims.lis.v1.score+json

Posting needs the platform's keys and is left to whoever has them. https://www.imsglobal.org/spec/lti-ags/v2p0
"""

import csv
import datetime
from pathlib import Path

from hvdgrade.batch.handed_in import comparable, settle
from hvdgrade.batch.results import CannotExport
from hvdgrade.output.text import printable


def payloads(
    documents: list[dict], users: Path | None, handed_in: set[str]
) -> tuple[dict[str, dict | None], list[str]]:
    """The payloads of a class, and what to tell the instructor.

    Args:
        documents: the results.
        users: a CSV file, student and LTI user id ("sub"); without it the student's id is taken for that.
        handed_in: names of the submissions that still are: of two results for one user they decide.

    Returns:
        The submission's name -> payload, one for each user, None without a score; a line for each result
        that belongs to no user.

    Raises:
        CannotExport: this is no such file.
    """
    ids = read_users(users) if users else None
    claims: dict[str, list[dict]] = {}
    said = []
    for document in documents:
        student = document["submission"]["id"]
        user = student if ids is None else ids.get(comparable(student))
        if user is None:
            said.append(f"not in {users}: {student}")
        else:
            claims.setdefault(user, []).append(document)
    settled, doubts = settle(claims, {user: user for user in claims}, handed_in)
    made = {one["batch"]["name"]: payload(one, user) for user, one in settled.items()}
    return made, said + doubts


def payload(document: dict, user: str | None = None) -> dict | None:
    """The payload of a result for an LTI user id ("sub"); by default the student's id.

    None without a score: a payload that gives none would clear the one that the student has.
    """
    if document["status"] != "graded":
        return None
    return {
        "userId": user or document["submission"]["id"],
        "timestamp": timestamp(document),
        "activityProgress": "Completed",
        "gradingProgress": "FullyGraded",
        "comment": comment(document),
        "scoreGiven": document["score"],
        "scoreMaximum": document["max_score"],
    }


def timestamp(document: dict) -> str:
    """When the grading ended, RFC 3339 in UTC: a later grading has a later one, as the platform wants."""
    finished = document["batch"].get("finished")
    if finished:
        return finished
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return now.replace("+00:00", "Z")


def comment(document: dict) -> str:
    """What the student reads beside the score; plain text."""
    lost = [c["title"] for c in document["checks"] if c["state"] in ("fail", "partial", "error")]
    return document["verdict"] + (f"; look at: {', '.join(lost)}" if lost else "")


def read_users(path: Path) -> dict[str, str]:
    """Student -> LTI user id, from the first two columns of a CSV file. Raises CannotExport."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    except (UnicodeDecodeError, csv.Error):
        rows = []
    users: dict[str, str] = {}
    for student, user in (row[:2] for row in rows if len(row) >= 2 and row[0] and row[1]):
        if users.setdefault(comparable(student), user) != user:
            raise CannotExport(
                f"{path} has two LTI user ids for {printable(student)}: leave one of them."
            )
    if not users:
        raise CannotExport(
            f"{path} must be UTF-8 with two columns separated by commas: student, LTI user id."
        )
    return users
