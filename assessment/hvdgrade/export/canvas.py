"""The format `canvas`: fill one column of a gradebook that Canvas exported, and change no other byte.

Each cell is located and replaced at its position in the text of the file. Before that, this module checks
that Python's csv module reads the same cells. If it does not, the file is refused.
"""

import argparse
import codecs
import csv
import io
import math
import re
from collections.abc import Collection
from pathlib import Path

from hvdgrade.batch.handed_in import handed_in
from hvdgrade.batch.results import CannotExport, ungraded
from hvdgrade.export.canvas_matching import MATCH_BY, cell_of, match
from hvdgrade.output import files

OUTPUT = "canvas.csv"
# First columns of a gradebook; which of the two depends on Canvas's settings.
NAME_COLUMNS = (["Student"], ["LastName", "FirstName"])
STUDENT_COLUMNS = (*sum(NAME_COLUMNS, []), *MATCH_BY, "Integration ID", "Root Account", "Section")
# Values that Canvas writes into a student's cell. A score in place of EX would cancel the excuse.
NO_SCORE, NOT_ASSIGNED, EXCUSED = ("", "-"), "N/A", "EX"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this format.

    Args:
        parser: the parser of `hvdgrade export`.
    """
    group = parser.add_argument_group(
        "canvas",
        "OUT/canvas.csv: a copy of the gradebook with the scores in one column, to upload to Canvas",
    )
    group.add_argument(
        "--gradebook", type=Path, metavar="CSV", help="gradebook that Canvas exported"
    )
    group.add_argument(
        "--column", metavar="NAME", help="name of the column to fill, as in the first row"
    )
    group.add_argument(
        "--overwrite", action="store_true", help="also replace scores that the column already has"
    )


def write(documents: list[dict], args: argparse.Namespace) -> list[str]:
    """Write the filled gradebook to `args.output` and return lines for the instructor.

    Args:
        documents: the results of the batch.
        args: the parsed arguments.

    Raises:
        CannotExport: an option is missing, or the gradebook cannot be used.
    """
    if not args.gradebook or not args.column:
        raise CannotExport("canvas needs --gradebook EXPORT.csv and --column 'NAME (ID)'.")
    if args.output.resolve() == args.gradebook.resolve():
        raise CannotExport("--output names the gradebook itself: choose another file.")
    gradebook = args.gradebook.read_bytes()
    filled, messages = fill(gradebook, args.column, documents, args.overwrite, handed_in(args.out))
    files.write(args.output, filled)
    return [f"{args.output}: upload this file to Canvas", *messages]


def fill(
    gradebook: bytes,
    column: str,
    documents: list[dict],
    overwrite: bool = False,
    names: Collection[str] = frozenset(),
) -> tuple[bytes, list[str]]:
    """Fill a column with scores.

    Args:
        gradebook: content of the file that Canvas exported.
        column: name of the column, for example "Assignment 1 (1234)".
        documents: the results. Their scores are scaled to the column's "Points Possible" if it has some.
        overwrite: whether to replace scores that are already there. Default: False.
        names: names of the submissions that are still handed in. If one student has several results,
            they decide which result counts. Default: none.

    Returns:
        The new content, and lines for the instructor.

    Raises:
        CannotExport: the file is not such a gradebook, or has no such column.
    """
    bom = codecs.BOM_UTF8 if gradebook.startswith(codecs.BOM_UTF8) else b""
    try:
        text = gradebook[len(bom) :].decode("utf-8")
    except UnicodeDecodeError:
        raise CannotExport(
            "the gradebook is not UTF-8: use the file as Canvas exported it."
        ) from None
    rows, spans = read(text)
    head = [name.strip() for name in rows[0]]
    name_columns = find_name_columns(head)
    at = find_column(head, column)
    students, possible, broken = student_rows(rows, head, at)

    people = {number: ", ".join(row[: len(name_columns)]) for number, row in students.items()}
    matches, unclear = match(documents, students, head, people, names)
    free, occupied = free_cells(matches, students, at, overwrite)
    scores = {spans[number][at]: scaled(document, possible) for number, document in free.items()}
    pieces, end = [], 0
    for (start, stop), score in sorted(scores.items()):
        pieces += [text[end:start], score]
        end = stop
    filled = bom + "".join([*pieces, text[end:]]).encode()

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
    return filled, messages


def find_name_columns(head: list[str]) -> list[str]:
    """Return the columns that hold a student's name.

    Args:
        head: names of all columns.

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

    Args:
        head: names of all columns.
        column: its name.

    Raises:
        CannotExport: no column or several columns have this name, or it identifies students.
    """
    if head.count(column) == 1 and column not in STUDENT_COLUMNS:
        return head.index(column)
    problem = f"has {head.count(column) or 'no'} columns '{column}'"
    if column in STUDENT_COLUMNS:
        problem = f"uses '{column}' to identify students"
    assignments = [name for name in head if re.search(r"\([0-9]+\)$", name)]
    raise CannotExport(f"the gradebook {problem}; its assignments are: {', '.join(assignments)}")


def student_rows(
    rows: list[list[str]], head: list[str], at: int
) -> tuple[dict[int, list[str]], float | None, list[str]]:
    """Find the students' rows and the row "Points Possible".

    Args:
        rows: cells of each row; the first row holds the column names.
        head: names of all columns.
        at: index of the column to fill.

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
    matches: dict[int, dict], students: dict[int, list[str]], at: int, overwrite: bool
) -> tuple[dict[int, dict], list[str]]:
    """Select the results whose cells may be filled.

    Args:
        matches: row number -> result.
        students: row number -> cells.
        at: index of the column to fill.
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


def scaled(document: dict, possible: float | None) -> str:
    """Return a score as text for the column.

    Args:
        document: a graded result.
        possible: points of the column. With None or 0 the score is not scaled.
    """
    scale = possible / document["max_score"] if possible and document["max_score"] else 1
    return f"{document['score'] * scale:.2f}".rstrip("0").rstrip(".")


def points(cell: str, column: str) -> float | None:
    """Return the points that a column gives, or None if the cell is empty.

    Numbers are read as Canvas reads them, in any language: the last comma or point is the decimal point.

    Args:
        cell: the cell in the row "Points Possible".
        column: name of the column, for messages.

    Raises:
        CannotExport: the cell is not a number, or Canvas does not import this column.
    """
    text = cell.strip()
    if not text:
        return None
    if re.search(
        r"read\s+only", text
    ):  # Canvas marks columns that it does not import with these words
        raise CannotExport(f"'{column}' is read only in Canvas: name an assignment's column.")
    *whole, last = re.split("[.,]", text)
    try:
        number = float(f"{''.join(whole)}.{last}" if whole else last)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise CannotExport(f"the column's 'Points Possible' must be a number. Received: {text}")
    return number


def read(text: str) -> tuple[list[list[str]], list[list[tuple[int, int]]]]:
    """Return the cells of each row, and the start and end of each cell in the text.

    Args:
        text: content of a CSV file with commas or semicolons.

    Raises:
        CannotExport: the text is not CSV, or Python's csv module reads other cells.
    """
    first = re.match(r'"?(?:Student|LastName)"?([,;])', text)
    delimiter = first[1] if first else ","  # depends on the language of the Canvas user
    cell = re.compile(rf'"(?:[^"]|"")*"|[^"{delimiter}\r\n][^{delimiter}\r\n]*|')
    newline = re.compile(r"\r\n|\n|\r|\Z")
    spans, row, at = [], [], 0
    while at < len(text) or row:
        row.append(cell.match(text, at).span())
        at = row[-1][1]
        if text[at : at + 1] == delimiter:
            at += 1
            continue
        spans.append(row)
        row = []
        end = newline.match(text, at)
        if not end:
            raise CannotExport(f"the gradebook is not a CSV file: look at its row {len(spans)}.")
        at = end.end()
    cells = [[unquoted(text[start:stop]) for start, stop in row] for row in spans]
    try:
        expected = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise CannotExport(f"the gradebook is not a CSV file: {error}.") from None
    if not cells or [row or [""] for row in expected] != cells:
        raise CannotExport("the gradebook is not a CSV file as Canvas exports it.")
    return cells, spans


def unquoted(cell: str) -> str:
    """Return the text of a cell without its quotes.

    Args:
        cell: the cell as it stands in the file.
    """
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell
