"""Score payloads of LTI's Assignment and Grade Services 2.0, one for each submission.

    POST {lineitem}/scores        Content-Type: application/vnd.ims.lis.v1.score+json

Posting needs the platform's keys and is left to whoever has them. https://www.imsglobal.org/spec/lti-ags/v2p0
"""

import csv
import datetime
from pathlib import Path

from hvdgrade.export import CannotExport

# A payload without scoreGiven clears the score, it does not set a zero. What could not be graded stays so
# ("Failed") until something else is handed in; a fault of the grader's will be run again ("Pending").
GRADING = {
    "graded": "FullyGraded",
    "not_gradable": "Failed",
    "infrastructure_error": "Pending",
}


def payload(document: dict, users: dict[str, str] | None = None) -> dict | None:
    """The payload of a result; None if `users` does not name the student.

    Args:
        document: a result.
        users: student -> LTI user id ("sub"); without it the student's id is taken for that.
    """
    student = document["submission"]["id"]
    user = student if users is None else users.get(student.strip())
    if user is None:
        return None
    graded = document["status"] == "graded"
    score = {
        "userId": user,
        "timestamp": timestamp(document),
        "activityProgress": "Completed" if graded else "Submitted",
        "gradingProgress": GRADING[document["status"]],
        "comment": comment(document),
    }
    if graded:
        score |= {"scoreGiven": document["score"], "scoreMaximum": document["max_score"]}
    return score


def timestamp(document: dict) -> str:
    """When the grading ended, RFC 3339 in UTC: a later grading has a later one, as the platform wants."""
    finished = document["batch"].get("finished")
    if finished:
        return finished
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return now.replace("+00:00", "Z")


def comment(document: dict) -> str:
    """What the student reads beside the score; plain text."""
    if document["status"] == "not_gradable":
        return f"Not gradable, no attempt lost: {document['reason']}"
    if document["status"] != "graded":
        return "The grader failed; this is not your fault. It will be run again."
    lost = [c["title"] for c in document["checks"] if c["state"] in ("fail", "partial", "error")]
    return document["verdict"] + (f"; look at: {', '.join(lost)}" if lost else "")


def read_users(path: Path) -> dict[str, str]:
    """Student -> LTI user id, from the first two columns of a CSV file. Raises CannotExport."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    except (UnicodeDecodeError, csv.Error):
        rows = []
    users = {row[0]: row[1] for row in rows if len(row) >= 2 and row[0] and row[1]}
    if not users:
        raise CannotExport(
            f"{path} must be UTF-8 with two columns separated by commas: student, LTI user id."
        )
    return users
