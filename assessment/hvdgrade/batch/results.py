"""Read the results of a batch."""

from pathlib import Path

from hvdgrade import HvdgradeError
from hvdgrade.batch.id_table import read_students
from hvdgrade.result_document import NotAResult, ResultDocument, read

UNGRADED = {"not_gradable": "not gradable", "infrastructure_error": "grader fault"}


class CannotExport(HvdgradeError):
    """The results or the files for an export cannot be used. The message says why in one sentence."""


def load(out: Path) -> list[ResultDocument]:
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
            document = read(path.read_bytes())
        except (OSError, NotAResult):
            raise CannotExport(
                f"{path} is not a result of hvdgrade: remove it and run 'hvdgrade batch' again."
            ) from None
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


def ungraded(documents: list[ResultDocument]) -> list[str]:
    """Return a line for each submission without a score."""
    return [
        f"no score, {UNGRADED[document['status']]}: {document['submission']['id']}"
        for document in documents
        if document["status"] in UNGRADED
    ]
