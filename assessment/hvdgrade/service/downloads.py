"""The results of an assignment as files: a table, a gradebook of a platform, or a folder of a batch."""

import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException
from starlette.responses import Response

from hvdgrade.batch import csv_table
from hvdgrade.batch.results import CannotExport
from hvdgrade.batch.submissions import safe_name
from hvdgrade.export import canvas, moodle
from hvdgrade.result_document import ResultDocument
from hvdgrade.service.class_folder import document_of, write_folder
from hvdgrade.service.models import Assignment, Grade, Person

MESSAGES = "messages.txt"


def csv(session: Session, assignment: Assignment) -> Response:
    """Return a table with a row per person."""
    documents = list(counted(session, assignment))
    return file(csv_table.table(documents), f"{assignment.slug}.csv", "text/csv")


def batch_folder(session: Session, assignment: Assignment) -> Response:
    """Return the folder that `hvdgrade course export` writes."""
    with tempfile.TemporaryDirectory(prefix="hvdgrade-") as place:
        folder = Path(place, "folder")
        messages = write_folder(session, assignment, folder)
        (folder / MESSAGES).write_text("".join(f"{line}\n" for line in messages), "utf-8")
        packed = Path(shutil.make_archive(f"{place}/packed", "zip", folder)).read_bytes()
    return file(packed, f"{assignment.slug}.zip", "application/zip")


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
    """Yield the result of each person that counts."""
    found = select(Grade).where(Grade.assignment_id == assignment.id)
    for grade in session.scalars(found.join(Person).order_by(Person.name, Person.id)).all():
        if grade.grading or grade.override is not None:
            yield document_of(grade)


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
    headers = {"Content-Disposition": f'attachment; filename="{safe_name(name)}"'}
    return Response(content, headers=headers, media_type=media_type)
