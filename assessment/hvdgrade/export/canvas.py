"""Fills one column of a gradebook that Canvas exported, and changes nothing else: not a byte.

Cells are found and replaced where they stand in the text. That the csv module reads the same cells there
is checked first, so a file that is not what it looks like is refused.
"""

import codecs
import csv
import io
import math
import re

from hvdgrade.batch.results import CannotExport, ungraded
from hvdgrade.export.canvas_matching import MATCH_BY, match, named

NAMES = (["Student"], ["LastName", "FirstName"])  # the first columns, as Canvas's settings have it
ABOUT_STUDENTS = (*sum(NAMES, []), *MATCH_BY, "Integration ID", "Root Account", "Section")
# As Canvas writes them into a student's cell; a score in the place of EX would end the excuse.
NO_SCORE, NOT_ASSIGNED, EXCUSED = ("", "-"), "N/A", "EX"


def fill(
    gradebook: bytes,
    column: str,
    documents: list[dict],
    overwrite: bool = False,
    handed_in: set[str] = frozenset(),
) -> tuple[bytes, list[str]]:
    """Fill a column with scores.

    Args:
        gradebook: the bytes of Canvas's export.
        column: the head of the column, "Assignment 1 (1234)".
        documents: results, scaled to the column's "Points Possible" if it has some.
        overwrite: replace scores that are there already.
        handed_in: names of the submissions that still are; of two results for one student they decide
            which counts. By default none does.

    Returns:
        The new bytes, and what to tell the instructor.

    Raises:
        CannotExport: this is no such gradebook, or it has no such column.
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
    names = next((names for names in NAMES if head[: len(names)] == names), None)
    if not names or "ID" not in head:
        raise CannotExport(
            "the gradebook has no columns 'Student' and 'ID' (nor 'LastName', 'FirstName' and 'ID'): "
            "use the file as Canvas exported it."
        )
    if head.count(column) != 1 or column in ABOUT_STUDENTS:
        assignments = [name for name in head if re.search(r"\([0-9]+\)$", name)]
        what = f"has {head.count(column) or 'no'} columns '{column}'"
        if column in ABOUT_STUDENTS:
            what = f"says in '{column}' who a student is"
        raise CannotExport(f"the gradebook {what}; its assignments are: {', '.join(assignments)}")
    at = head.index(column)
    students, possible, broken = {}, None, []
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(head) and row != [""]:
            cells = f"{len(row)} cells instead of {len(head)}"
            if row[0].strip().startswith("Points Possible"):
                raise CannotExport(
                    f"the gradebook's row of 'Points Possible' has {cells}: use the file as Canvas "
                    "exported it."
                )
            broken.append(f"row {number + 1} has {cells}: left as it is")
        elif row[0].strip().startswith("Points Possible") and not named(row, head, "ID"):
            possible = points(row[at], column)
        elif any(named(row, head, name) for name in MATCH_BY):
            students[number] = row

    who = {number: ", ".join(row[: len(names)]) for number, row in students.items()}
    matches, report = match(documents, students, head, who, handed_in)
    free, taken = free_cells(matches, students, at, overwrite)
    scores = {spans[number][at]: scaled(document, possible) for number, document in free.items()}
    pieces, end = [], 0
    for (start, stop), score in sorted(scores.items()):
        pieces += [text[end:start], score]
        end = stop
    filled = bom + "".join([*pieces, text[end:]]).encode()

    absent = [name for number, name in who.items() if number not in matches]
    said = [
        f"filled: {len(scores)}" + (f" (of {possible:g} points)" if possible else ""),
        *(["the column gives 0 points: scores are as the grader gave them"] * (possible == 0)),
        *taken,
        *ungraded(documents),
        *broken,
        *report,
        *(f"no result: {name}" for name in absent if name.strip() != "Student, Test"),
    ]
    return filled, said


def free_cells(
    matches: dict[int, dict], students: dict[int, list[str]], at: int, overwrite: bool
) -> tuple[dict[int, dict], list[str]]:
    """The scores whose cells may be filled, {row number: document}, and a line for each that may not."""
    free, taken = {}, []
    for number, document in matches.items():
        cell, id = students[number][at].strip(), document["submission"]["id"]
        if document["status"] != "graded":
            continue
        if cell == NOT_ASSIGNED:
            taken.append(
                f"not assigned in Canvas, or its anonymous grades are not posted yet: {id}"
            )
        elif cell.upper() == EXCUSED:
            taken.append(f"excused in Canvas: {id}")
        elif cell in NO_SCORE or overwrite:
            free[number] = document
        else:
            taken.append(f"kept the score that is there (--overwrite replaces it): {id}")
    return free, taken


def scaled(document: dict, possible: float | None) -> str:
    """A score as it stands in the column: of its points, if it has some."""
    scale = possible / document["max_score"] if possible and document["max_score"] else 1
    return f"{document['score'] * scale:.2f}".rstrip("0").rstrip(".")


def points(cell: str, column: str) -> float | None:
    """The points that a column gives; None if it names none. Raises CannotExport.

    As Canvas reads a number, in any language: the last comma or point is the decimal point.
    """
    text = cell.strip()
    if not text:
        return None
    if re.search(r"read\s+only", text):  # by this Canvas knows a column that it does not import
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
    """The cells of each row, and where each stands in the text."""
    first = re.match(r'"?(?:Student|LastName)"?([,;])', text)
    delimiter = first[1] if first else ","  # as the user's language has it
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
            raise CannotExport(f"the gradebook is no CSV file: look at its row {len(spans)}.")
        at = end.end()
    ours = [[unquoted(text[start:stop]) for start, stop in row] for row in spans]
    try:
        theirs = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise CannotExport(f"the gradebook is no CSV file: {error}.") from None
    if not ours or [row or [""] for row in theirs] != ours:
        raise CannotExport("the gradebook is no CSV file as Canvas exports it.")
    return ours, spans


def unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell
