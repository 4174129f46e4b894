"""Read the results of a batch."""

import json
from pathlib import Path

from hvdgrade.batch import handed_in
from hvdgrade.output.text import is_number
from hvdgrade.report.wording import part

VERDICTS = ("pass", "fail")
UNGRADED = {"not_gradable": "not gradable", "infrastructure_error": "grader fault"}


class CannotExport(Exception):
    """Why nothing was written: one sentence."""


def load(out: Path) -> list[dict]:
    """The results of a batch, sorted by student. Raises CannotExport.

    Where Ada is in DIR and then ada, too, their files get other names: what Ada had before does not count.
    """
    documents, students = [], handed_in.handed_in(out)
    for path in (out / "results").glob("[!.]*.json"):
        try:
            document = json.loads(path.read_text())
            ours = is_result(document)
        except (OSError, ValueError):
            ours = False
        if not ours:
            raise CannotExport(
                f"{path} is no result of hvdgrade: remove it and run 'hvdgrade batch' again."
            )
        name = document.setdefault("batch", {}).setdefault("name", path.stem)
        if name in students or document["submission"]["id"] not in students.values():
            documents.append(document)
    return sorted(documents, key=lambda document: document["submission"]["id"])


def is_result(document) -> bool:
    """Whether it has what an export reads of each result, and of a graded one."""
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
    """A line for each submission without a score."""
    return [
        f"no score, {UNGRADED[document['status']]}: {document['submission']['id']}"
        for document in documents
        if document["status"] in UNGRADED
    ]
