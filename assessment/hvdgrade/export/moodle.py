"""The format `moodle`: fill the offline grading worksheet of an assignment, and change no other byte.

Moodle offers the worksheet with "Download grading worksheet", and takes it back with "Upload grading
worksheet". Its column "Identifier" has the participant number, which is also in the names of "Download all
submissions". The names of the columns depend on the language of Moodle's user.
"""

import argparse
import re
from collections.abc import Collection
from pathlib import Path

from hvdgrade.batch.handed_in import settle
from hvdgrade.batch.id_table import Student, comparable, read_students, student_of
from hvdgrade.batch.results import CannotExport, ungraded
from hvdgrade.export.csv_cells import read, read_number, scaled
from hvdgrade.output import files
from hvdgrade.result_document import ResultDocument

OUTPUT = "moodle.csv"
GRADE, MAXIMUM, CHANGEABLE = "Grade", "Maximum grade", "Grade can be changed"
NO_SCORE = ("", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this format. It also uses `--column` and `--overwrite` of `canvas`."""
    group = parser.add_argument_group(
        "moodle",
        "OUT/moodle.csv: a copy of the grading worksheet with the scores, to upload to Moodle. --column\n"
        "names the column of the grade if Moodle's language is not English. --overwrite as for canvas.",
    )
    group.add_argument(
        "--worksheet", type=Path, metavar="CSV", help="grading worksheet that Moodle exported"
    )


def write(documents: list[ResultDocument], args: argparse.Namespace) -> list[str]:
    """Write the filled worksheet to `args.output` and return lines for the instructor.

    Raises:
        CannotExport: an option is missing, or the worksheet cannot be used.
    """
    if not args.worksheet:
        raise CannotExport("moodle needs --worksheet EXPORT.csv, the grading worksheet of Moodle.")
    if args.output.resolve() == args.worksheet.resolve():
        raise CannotExport("--output names the worksheet itself: choose another file.")
    filled, messages = fill(
        args.worksheet.read_bytes(),
        documents,
        args.column or GRADE,
        args.overwrite,
        read_students(args.out),
    )
    files.write(args.output, filled)
    return [f"{args.output}: upload this file to Moodle", *messages]


def fill(
    worksheet: bytes,
    documents: list[ResultDocument],
    column: str = GRADE,
    overwrite: bool = False,
    names: Collection[str] = frozenset(),
) -> tuple[bytes, list[str]]:
    """Fill the column of the grade.

    Args:
        column: name of the column. Default: "Grade".
        overwrite: whether to replace grades that are already there. Default: False.
        names: names of the submissions that are still handed in. If one student has several results,
            they decide which result counts. Default: none.

    Returns:
        The new content, and lines for the instructor.

    Raises:
        CannotExport: the file is not such a worksheet, or has no such column.
    """
    table = read(worksheet, "worksheet", "Moodle")
    head = [name.strip() for name in table.cells[0]]
    if head.count(column) != 1:
        raise CannotExport(
            f"the worksheet has {head.count(column) or 'no'} columns '{column}': name the column of the "
            f"grade with --column. Its columns are: {', '.join(head)}"
        )
    at = head.index(column)
    rows = {n: row for n, row in enumerate(table.cells[1:], 1) if len(row) == len(head)}
    possible = maximum(head, list(rows.values()), at) if rows else 0
    people = {n: " ".join(row[:2]) for n, row in rows.items()}
    matches, messages = match(documents, rows, at, people, names)
    values, kept = {}, []
    for n, document in matches.items():
        student = student_of(document).shown
        if document["status"] != "graded":
            continue
        if "No" in [cell for name, cell in zip(head, rows[n], strict=True) if name == CHANGEABLE]:
            kept.append(f"the grade cannot be changed in Moodle: {student}")
        elif rows[n][at].strip() in NO_SCORE or overwrite:
            values[n, at] = scaled(document, possible)
        else:
            kept.append(f"kept the existing grade (--overwrite replaces it): {student}")
    messages = [
        f"filled: {len(values)}",
        *kept,
        *ungraded(documents),
        *(
            f"row {n + 1} has {len(row)} cells instead of {len(head)}: left unchanged"
            for n, row in enumerate(table.cells)
            if len(row) != len(head) and row != [""]
        ),
        *messages,
        *(f"no result: {who}" for n, who in people.items() if n not in matches),
    ]
    return table.filled(values), messages


def maximum(head: list[str], rows: list[list[str]], at: int) -> float:
    """Return the maximum grade. Moodle writes it to the right of the grade, in the row of each student.

    Raises:
        CannotExport: the column is not that of the grade, or there is no maximum grade, because the
            assignment uses a scale.
    """
    next_to = "".join(head[at + 1 : at + 2])
    is_left_of_grade = any(re.fullmatch(r"[0-9.,]+", "".join(row[at + 2 : at + 3])) for row in rows)
    if (MAXIMUM in head and next_to != MAXIMUM) or is_left_of_grade:
        raise CannotExport(
            f"the column '{head[at]}' does not contain the grades: name the column to the left of the "
            "maximum grade with --column."
        )
    cells = {"".join(row[at + 1 : at + 2]).strip() for row in rows}
    if len(cells) > 1:
        raise CannotExport(
            f"the column '{head[at]}' does not contain the grades, because the next column, '{next_to}', "
            "does not contain the same maximum for all students: name the column of the grade with --column."
        )
    points = read_number(
        "".join(cells), f"the worksheet's '{next_to or MAXIMUM}', next to the grade,"
    )
    if not points:
        raise CannotExport(
            f"the worksheet has no '{MAXIMUM}' next to the grade: choose points, not a scale, as the type of "
            "the assignment's grade."
        )
    return points


def match(
    documents: list[ResultDocument],
    rows: dict[int, list[str]],
    at: int,
    people: dict[int, str],
    names: Collection[str],
) -> tuple[dict[int, ResultDocument], list[str]]:
    """Assign results to rows, by the participant number or by another cell left of the grade.

    Args:
        rows: row number -> cells.
        people: row number -> the student, for messages.

    Returns:
        A dict from row number to result, and a line for each result that matches several rows, and one for
        all results that match no row.
    """
    participants: dict[str, set[int]] = {}
    cells: dict[str, set[int]] = {}
    for n, row in rows.items():
        if participant := re.search(r"[0-9]+\s*\Z", row[0]):
            participants.setdefault(participant[0].strip(), set()).add(n)
        for cell in filter(None, map(comparable, row[:at])):
            cells.setdefault(cell.casefold(), set()).add(n)
    claims: dict[int, list[ResultDocument]] = {}
    messages, without_row = [], []
    for document in documents:
        student = student_of(document)
        fitting = rows_of(student, participants, cells)
        if len(fitting) == 1:
            claims.setdefault(*fitting, []).append(document)
        elif fitting:
            listed = "; ".join(people[n] for n in sorted(fitting))
            messages.append(f"several rows match {student.shown}, so none is filled: {listed}")
        else:
            without_row.append(student.shown)
    if without_row:
        messages.append(f"no row in the worksheet: {', '.join(without_row)}")
    settled, unclear = settle(claims, people, names)
    return settled, messages + unclear


def rows_of(
    student: Student, participants: dict[str, set[int]], cells: dict[str, set[int]]
) -> set[int]:
    """Return the rows that fit a student.

    Args:
        participants: participant number -> rows.
        cells: text of another cell -> rows.
    """
    if student.platform == "moodle":
        return participants.get(student.id, set())
    for key in student.keys:
        if fitting := participants.get(key, set()) | cells.get(key.casefold(), set()):
            return fitting
    return set()
