"""The format `lti`: a score payload for LTI Assignment and Grade Services 2.0, one per submission.

    POST {lineitem}/scores        Content-Type: application/vnd.ims.lis.v1.score+json

Sending a payload requires an access token of the learning platform, so the files are only written here.

Source: https://www.imsglobal.org/spec/lti-ags/v2p0
"""

import argparse
import datetime
from collections.abc import Collection
from pathlib import Path

from hvdgrade.batch.handed_in import settle
from hvdgrade.batch.id_table import first_known, read_pairs, read_students, student_of
from hvdgrade.batch.results import ungraded
from hvdgrade.export.payload_files import write_payloads
from hvdgrade.result_document import ResultDocument

OUTPUT = "lti"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this format."""
    group = parser.add_argument_group(
        "lti",
        "OUT/lti/NAME.json for each submission: a score of LTI Assignment and Grade Services 2.0",
    )
    group.add_argument(
        "--users",
        type=Path,
        metavar="CSV",
        help="file with two columns: id or e-mail address of the student, LTI user id (sub) (default: the "
        "student's id is the user id)",
    )


def write(documents: list[ResultDocument], args: argparse.Namespace) -> list[str]:
    """Write a file per LTI user to the folder `args.output`; return lines for the instructor.

    Raises:
        BadTable: the file of `--users` is not a table of user ids.
    """
    by_name, messages = payloads(documents, args.users, read_students(args.out))
    messages = [*ungraded(documents), *messages]
    return write_payloads(by_name, args.output, "*.json", messages)


def payloads(
    documents: list[ResultDocument], users: Path | None, names: Collection[str]
) -> tuple[dict[str, dict | None], list[str]]:
    """Return the payloads of a class, and lines for the instructor.

    Args:
        users: CSV file with the columns student and LTI user id ("sub"). With None, the student's id is
            the user id.
        names: names of the submissions that are still handed in. If one user has several results, they
            decide which result counts.

    Returns:
        A dict from the name of a submission to its payload, with one submission per user and None for a
        submission without a score; and a line for each result that belongs to no user.

    Raises:
        BadTable: `users` is not such a file.
    """
    ids = read_pairs(users, "student", "LTI user id") if users else None
    claims: dict[str, list[ResultDocument]] = {}
    messages = []
    for document in documents:
        student = student_of(document)
        user = student.id if ids is None else first_known(student, ids)
        if user is None:
            messages.append(f"not in {users}: {student.shown}")
        else:
            claims.setdefault(user, []).append(document)
    settled, unclear = settle(claims, {user: user for user in claims}, names)
    by_name = {
        document["batch"]["name"]: payload(document, user) for user, document in settled.items()
    }
    return by_name, messages + unclear


def payload(document: ResultDocument, user: str | None = None) -> dict | None:
    """Return the payload of a result, or None without a score.

    A payload without `scoreGiven` would make the platform delete the score that the student already has.

    Args:
        user: LTI user id ("sub"). Default: the student's id.
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


def timestamp(document: ResultDocument) -> str:
    """Return when the grading ended, as RFC 3339 text in UTC.

    The platform requires that a later score has a later timestamp.
    """
    finished = document["batch"].get("finished")
    if finished:
        return finished
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return now.replace("+00:00", "Z")


def comment(document: ResultDocument) -> str:
    """Return the plain text that the platform shows next to the score."""
    lost = [c["title"] for c in document["checks"] if c["state"] in ("fail", "partial", "error")]
    return document["verdict"] + (f"; look at: {', '.join(lost)}" if lost else "")
