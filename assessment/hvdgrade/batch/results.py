"""Read the results of a batch."""

import json
from pathlib import Path
from typing import Any

from hvdgrade import HvdgradeError
from hvdgrade.batch.id_table import read_students
from hvdgrade.output.text import is_number
from hvdgrade.report.wording import part

VERDICTS = ("pass", "fail")
UNGRADED = {"not_gradable": "not gradable", "infrastructure_error": "grader fault"}


class CannotExport(HvdgradeError):
    """The results or the files for an export cannot be used. The message says why in one sentence."""


def load(out: Path) -> list[dict]:
    """Return the results of a batch, sorted by student, with the ids of the last table of students.

    If a student "ada" hands in after a student "Ada", both get new file names, because some file systems do
    not distinguish them. The result that "Ada" had before under the old name is left out.

    Raises:
        CannotExport: a file in OUT/results is not a result.
    """
    documents, students = [], read_students(out)
    ids = {student.id for student in students.values()}
    for path in (out / "results").glob("[!.]*.json"):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            valid = is_result(document)
        except (OSError, ValueError):
            valid = False
        if not valid:
            raise CannotExport(
                f"{path} is not a result of hvdgrade: remove it and run 'hvdgrade batch' again."
            )
        name = document.setdefault("batch", {}).setdefault("name", path.stem)
        if student := students.get(name):
            document["submission"] |= {
                "student": student.shown,
                **{key: getattr(student, key) for key in ("id", "name", "email", "platform")},
                "left_out": list(student.left_out),
            }
        if student or document["submission"]["id"] not in ids:
            documents.append(document)
    return sorted(documents, key=lambda document: document["submission"]["id"])


def is_result(document: Any) -> bool:
    """Return whether a JSON value has the fields that an export reads."""
    if not isinstance(document, dict) or not isinstance(document.get("batch", {}), dict):
        return False
    graded = document.get("status") == "graded"
    scores = [document.get("score"), document.get("max_score")]
    return (
        isinstance(part(document, "submission").get("id"), str)
        and (graded or document.get("status") in UNGRADED)
        and (not graded or (all(map(is_number, scores)) and document.get("verdict") in VERDICTS))
    )


def ungraded(documents: list[dict]) -> list[str]:
    """Return a line for each submission without a score."""
    return [
        f"no score, {UNGRADED[document['status']]}: {document['submission']['id']}"
        for document in documents
        if document["status"] in UNGRADED
    ]
