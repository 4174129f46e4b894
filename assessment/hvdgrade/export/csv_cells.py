"""Fill cells of a CSV file that a learning platform exported, and change no other byte.

Each cell is located and replaced at its position in the text of the file. Before that, this module checks
that Python's csv module reads the same cells. If it does not, the file is refused.
"""

import codecs
import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hvdgrade.batch.results import CannotExport
from hvdgrade.result_document import ResultDocument


@dataclass(frozen=True)
class Table:
    """The cells of a CSV file.

    Attributes:
        text: the content of the file.
        bom: the byte order mark that the file began with; b"" if it had none.
        cells: the text of each cell, per row.
        spans: start and end of each cell in `text`, per row.
    """

    text: str
    bom: bytes
    cells: list[list[str]]
    spans: list[list[tuple[int, int]]]

    def filled(self, values: Mapping[tuple[int, int], str]) -> bytes:
        """Return the content of the file with other values in some cells.

        Args:
            values: row and column of a cell -> what to write there. It needs no quotes.
        """
        new = {self.spans[row][column]: value for (row, column), value in values.items()}
        pieces, end = [], 0
        for (start, stop), value in sorted(new.items()):
            pieces += [self.text[end:start], value]
            end = stop
        return self.bom + "".join([*pieces, self.text[end:]]).encode()


def read(data: bytes, what: str, platform: str, first_column: str = "") -> Table:
    """Return the cells of a CSV file with commas or semicolons.

    Args:
        first_column: regular expression for the name of the first column, after which the delimiter
            stands. Default: "", the delimiter is a comma.

    Raises:
        CannotExport: the file is not UTF-8 or not CSV, or Python's csv module reads other cells.
    """
    bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    try:
        text = data[len(bom) :].decode("utf-8")
    except UnicodeDecodeError:
        raise CannotExport(
            f"the {what} is not UTF-8: use the file as {platform} exported it."
        ) from None
    first = re.match(rf'"?(?:{first_column})"?([,;])', text) if first_column else None
    delimiter = first[1] if first else ","
    spans = spans_of(text, delimiter, what)
    cells = [[unquoted(text[start:stop]) for start, stop in row] for row in spans]
    try:
        expected = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise CannotExport(f"the {what} is not a CSV file: {error}.") from None
    if not cells or [row or [""] for row in expected] != cells:
        raise CannotExport(f"the {what} is not a CSV file as {platform} exports it.")
    return Table(text, bom, cells, spans)


def spans_of(text: str, delimiter: str, what: str) -> list[list[tuple[int, int]]]:
    """Return the start and end of each cell.

    Raises:
        CannotExport: the text is not CSV.
    """
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
            raise CannotExport(f"the {what} is not a CSV file: look at its row {len(spans)}.")
        at = end.end()
    return spans


def unquoted(cell: str) -> str:
    """Return the text of a cell without its quotes."""
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell


def read_number(cell: str, column: str) -> float | None:
    """Return the number in a cell, written in any language, or None if the cell is empty.

    The last comma or point is the decimal point.

    Raises:
        CannotExport: the cell is not a number.
    """
    text = cell.strip()
    if not text:
        return None
    *whole, last = re.split("[.,]", text)
    try:
        value = float(f"{''.join(whole)}.{last}" if whole else last)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise CannotExport(f"{column} must be a number. Received: {text}")
    return value


def scaled(document: ResultDocument, possible: float | None) -> str:
    """Return a score as text for a column.

    Args:
        possible: points of the column. With None or 0 the score is not scaled.
    """
    scale = possible / document["max_score"] if possible and document["max_score"] else 1
    return f"{document['score'] * scale:.2f}".rstrip("0").rstrip(".")
