"""The format `canvas`: fill one column of a gradebook that Canvas exported, and change no other byte."""

import argparse
import re
from collections.abc import Collection
from pathlib import Path

from hvdgrade.batch.id_table import read_students
from hvdgrade.batch.results import CannotExport, ungraded
from hvdgrade.export.canvas_matching import MATCH_BY, cell_of, match
from hvdgrade.export.csv_cells import read, read_number, scaled
from hvdgrade.output import files
from hvdgrade.result_document import ResultDocument

OUTPUT = "canvas.csv"
# First columns of a gradebook; which of the two depends on Canvas's settings.
NAME_COLUMNS = (["Student"], ["LastName", "FirstName"])
# Canvas writes the id of an assignment after its title. Columns without an id are totals, override scores,
# notes and facts about the student.
ASSIGNMENT = re.compile(r"\([0-9]+\)\Z")
# Values that Canvas writes into a student's cell. A score in place of EX would cancel the excuse.
NO_SCORE, NOT_ASSIGNED, EXCUSED = ("", "-"), "N/A", "EX"
# How a spreadsheet program writes a long number after it has rounded it.
ROUNDED = re.compile(r"[0-9](?:[.,][0-9]+)?E\+[0-9]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this format."""
    group = parser.add_argument_group(
        "canvas",
        "OUT/canvas.csv: a copy of the gradebook with the scores in one column, to upload to Canvas",
    )
    group.add_argument(
        "--gradebook", type=Path, metavar="CSV", help="gradebook that Canvas exported"
    )
    group.add_argument(
        "--column", metavar="NAME", help="assignment to fill, as in the first row: 'Title (1234)'"
    )
    group.add_argument(
        "--overwrite", action="store_true", help="also replace scores that the column already has"
    )
    group.add_argument(
        "--before-at",
        action="store_true",
        help="compare ids and logins only by the part before '@' where nothing else matches",
    )


def write(documents: list[ResultDocument], args: argparse.Namespace) -> list[str]:
    """Write the filled gradebook to `args.output` and return lines for the instructor.

    Raises:
        CannotExport: an option is missing, or the gradebook cannot be used.
    """
    if not args.gradebook or not args.column:
        raise CannotExport("canvas needs --gradebook EXPORT.csv and --column 'NAME (ID)'.")
    if args.output.resolve() == args.gradebook.resolve():
        raise CannotExport("--output names the gradebook itself: choose another file.")
    gradebook = args.gradebook.read_bytes()
    filled, messages = fill(
        gradebook,
        args.column,
        documents,
        args.overwrite,
        read_students(args.out),
        args.before_at,
    )
    files.write(args.output, filled)
    return [f"{args.output}: upload this file to Canvas", *messages]


def fill(
    gradebook: bytes,
    column: str,
    documents: list[ResultDocument],
    overwrite: bool = False,
    names: Collection[str] = frozenset(),
    before_at: bool = False,
) -> tuple[bytes, list[str]]:
    """Fill a column with scores.

    Args:
        column: name of the column, for example "Assignment 1 (1234)".
        documents: the results. Their scores are scaled to the column's "Points Possible" if it has some.
        overwrite: whether to replace scores that are already there. Default: False.
        names: names of the submissions that are still handed in. If one student has several results,
            they decide which result counts. Default: none.
        before_at: whether an id and a login may differ after "@". Default: False.

    Returns:
        The new content, and lines for the instructor.

    Raises:
        CannotExport: the file is not such a gradebook, or has no such column.
    """
    table = read(gradebook, "gradebook", "Canvas", "Student|LastName")
    rows = table.cells
    head = [name.strip() for name in rows[0]]
    name_columns = find_name_columns(head)
    at = find_column(head, column.strip())
    students, possible, broken = student_rows(rows, head, at)
    check_ids(students, head)

    people = {number: ", ".join(row[: len(name_columns)]) for number, row in students.items()}
    matches, unclear = match(documents, students, head, people, names, before_at)
    free, occupied = free_cells(matches, students, at, overwrite)
    scores = {(number, at): scaled(document, possible) for number, document in free.items()}

    absent = [name for number, name in people.items() if number not in matches]
    messages = [
        f"filled: {len(scores)}" + (f" (of {possible:g} points)" if possible else ""),
        *(["the column gives 0 points: scores are not scaled"] * (possible == 0)),
        *occupied,
        *ungraded(documents),
        *broken,
        *unclear,
        *(f"no result: {name}" for name in absent if name.strip() != "Student, Test"),
    ]
    return table.filled(scores), messages


def find_name_columns(head: list[str]) -> list[str]:
    """Return the columns that hold a student's name.

    Raises:
        CannotExport: these are not the columns of a gradebook.
    """
    for name_columns in NAME_COLUMNS:
        if head[: len(name_columns)] == name_columns and "ID" in head:
            return name_columns
    raise CannotExport(
        "the gradebook has no columns 'Student' and 'ID' (nor 'LastName', 'FirstName' and 'ID'): "
        "use the file as Canvas exported it."
    )


def find_column(head: list[str], column: str) -> int:
    """Return the index of the column to fill.

    Raises:
        CannotExport: no column or several columns have this name, or it is not an assignment's column.
    """
    if head.count(column) == 1 and ASSIGNMENT.search(column):
        return head.index(column)
    problem = f"has {head.count(column) or 'no'} columns '{column}'"
    if head.count(column) == 1:
        problem = f"has no assignment '{column}', because a number in brackets must end its heading"
    assignments = dict.fromkeys(name for name in head if ASSIGNMENT.search(name))
    listed = (
        f"its assignments are: {', '.join(assignments)}" if assignments else "it has no assignment"
    )
    raise CannotExport(f"the gradebook {problem}; {listed}")


def student_rows(
    rows: list[list[str]], head: list[str], at: int
) -> tuple[dict[int, list[str]], float | None, list[str]]:
    """Find the students' rows and the row "Points Possible".

    Returns:
        A dict from row number to cells, the points of the column (None if it has none), and a line for
        each row that has another number of cells, which stays as it is.

    Raises:
        CannotExport: the points cannot be read.
    """
    students, possible, broken = {}, None, []
    for number, row in enumerate(rows[1:], 1):
        is_points_row = row[0].strip().startswith("Points Possible")
        if len(row) != len(head) and row != [""]:
            cells = f"{len(row)} cells instead of {len(head)}"
            if is_points_row:
                raise CannotExport(
                    f"the gradebook's row of 'Points Possible' has {cells}: use the file as Canvas "
                    "exported it."
                )
            broken.append(f"row {number + 1} has {cells}: left unchanged")
        elif is_points_row and not cell_of(row, head, "ID"):
            possible = points(row[at], head[at])
        elif any(cell_of(row, head, name) for name in MATCH_BY):
            students[number] = row
    return students, possible, broken


def free_cells(
    matches: dict[int, ResultDocument], students: dict[int, list[str]], at: int, overwrite: bool
) -> tuple[dict[int, dict], list[str]]:
    """Select the results whose cells may be filled.

    Args:
        matches: row number -> result.
        students: row number -> cells.
        overwrite: whether scores that are already there may be replaced.

    Returns:
        A dict from row number to result, and a line for each cell that must stay as it is.
    """
    free, occupied = {}, []
    for number, document in matches.items():
        cell, id = students[number][at].strip(), document["submission"]["id"]
        if document["status"] != "graded":
            continue
        if cell == NOT_ASSIGNED:
            occupied.append(
                f"not assigned in Canvas, or its anonymous grades are not posted yet: {id}"
            )
        elif cell.upper() == EXCUSED:
            occupied.append(f"excused in Canvas: {id}")
        elif cell in NO_SCORE or overwrite:
            free[number] = document
        else:
            occupied.append(f"kept the existing score (--overwrite replaces it): {id}")
    return free, occupied


def check_ids(students: dict[int, list[str]], head: list[str]) -> None:
    """Check that no spreadsheet program has rounded the ids of a gradebook.

    Args:
        students: row number -> cells.

    Raises:
        CannotExport: it has.
    """
    for column in MATCH_BY:
        ids = [cell_of(row, head, column) for row in students.values()]
        if rounded := list(filter(ROUNDED.fullmatch, ids)):
            raise CannotExport(
                f"a spreadsheet program has rounded {len(rounded)} ids in the gradebook's column "
                f"'{column}' (for example {rounded[0]}), so neither this command nor Canvas can find the "
                "students: export the gradebook from Canvas again, and do not save it in another program."
            )


def points(cell: str, column: str) -> float | None:
    """Return the points that a column gives, or None if the cell is empty.

    Raises:
        CannotExport: the cell is not a number, or Canvas does not import this column.
    """
    # Canvas marks columns that it does not import with these words.
    if re.search(r"read\s+only", cell):
        raise CannotExport(f"'{column}' is read only in Canvas: name an assignment's column.")
    return read_number(cell, "the column's 'Points Possible'")
