"""The results of an assignment as files: a table, a gradebook of a platform, or a folder of a batch."""

import io
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from hvdgrade.batch import csv_table
from hvdgrade.batch.id_table import Student
from hvdgrade.batch.results import CannotExport
from hvdgrade.batch.submissions import safe_name
from hvdgrade.export import canvas, moodle
from hvdgrade.result_document import ResultDocument
from hvdgrade.service.class_folder import write_folder
from hvdgrade.service.models import Assignment, Grade, Person

CHUNK, MESSAGES = 64 * 1024, "messages.txt"
# What an export reads of a document, for points that staff set without any grading.
EMPTY = {
    **dict.fromkeys(("verdict", "score", "max_score", "seconds_to_target", "budget")),
    "checks": [],
    "timeline": [],
    "resources": {},
    "reason": "",
}


def csv(session: Session, assignment: Assignment) -> Response:
    """Return a table with a row per person."""
    documents = list(counted(session, assignment))
    return file(csv_table.table(documents), f"{assignment.slug}.csv", "text/csv")


def batch_folder(session: Session, assignment: Assignment) -> Response:
    """Return the folder that `hvdgrade course export` writes."""
    packed = tempfile.SpooledTemporaryFile(max_size=8_000_000)
    with tempfile.TemporaryDirectory(prefix="hvdgrade-") as place:
        folder = Path(place, assignment.slug)
        messages = write_folder(session, assignment, folder)
        (folder / MESSAGES).write_text("".join(f"{line}\n" for line in messages), "utf-8")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(folder))
    packed.seek(0)
    headers = _attachment(f"{assignment.slug}.zip")
    return StreamingResponse(_pieces(packed), headers=headers, media_type="application/zip")


def filled_canvas(session: Session, assignment: Assignment, data: bytes, column: str) -> Response:
    """Return a gradebook of Canvas with the points in one column, and what was noticed."""
    documents = list(counted(session, assignment))
    return _filled("canvas.csv", lambda: canvas.fill(data, column, documents))


def filled_moodle(session: Session, assignment: Assignment, data: bytes, column: str) -> Response:
    """Return a grading worksheet of Moodle with the points, and what was noticed."""
    documents = list(counted(session, assignment))
    return _filled("moodle.csv", lambda: moodle.fill(data, documents, column or moodle.GRADE))


DOWNLOADS = {"csv": csv, "zip": batch_folder}
FILLED = {"canvas": filled_canvas, "moodle": filled_moodle}


def counted(session: Session, assignment: Assignment) -> Iterator[ResultDocument]:
    """Yield the document of each person that counts, with the points that staff set."""
    found = select(Grade).where(Grade.assignment_id == assignment.id)
    for grade in session.scalars(found.join(Person).order_by(Person.name, Person.id)).all():
        if grade.grading is None and grade.override is None:
            continue
        document = EMPTY | (dict(grade.grading.document or {}) if grade.grading else {})
        student = _student(grade.person)
        about = {
            "id": student.id,
            "name": student.name,
            "email": student.email,
            "student": student.shown,
        }
        document["submission"] = dict(document.get("submission") or {}) | about
        document["batch"] = {"name": safe_name(student.id)}
        if grade.override is not None:
            points = {"score": grade.override, "max_score": grade.max_score, "status": "graded"}
            document |= points | {"reason": grade.reason, "verdict": document["verdict"]}
        yield document


def _student(person: Person) -> Student:
    return Student(person.email or str(person.id), person.name, person.email)


def _filled(name: str, fill: Callable[[], tuple[bytes, list[str]]]) -> Response:
    try:
        content, messages = fill()
    except CannotExport as error:
        raise HTTPException(400, str(error)) from None
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        archive.writestr(MESSAGES, "".join(f"{line}\n" for line in messages))
    return file(packed.getvalue(), name.replace(".csv", ".zip"), "application/zip")


def file(content: bytes, name: str, media_type: str) -> Response:
    """Return a file that the browser saves."""
    return Response(content, headers=_attachment(name), media_type=media_type)


def _attachment(name: str) -> dict[str, str]:
    safe = safe_name(name)
    return {"Content-Disposition": f'attachment; filename="{safe}"'}


def _pieces(packed: IO[bytes]) -> Iterator[bytes]:
    with packed:
        while piece := packed.read(CHUNK):
            yield piece
