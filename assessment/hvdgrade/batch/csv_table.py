"""The results as a table that a spreadsheet can open without running anything.

What begins like a formula gets an apostrophe in front: a cell, and within it what follows a semicolon, a
tab or the end of a line, where a spreadsheet may begin a new cell, or a quote, which may end there. So does
what begins with an apostrophe: dropping one apostrophe in each of these places always gives the text back.
"""

import csv
import re
from typing import TextIO

FORMULA = re.compile(r"""(?:\A|(?<=[;\t\r\n"]))(?=[=+\-@\t\r\n'])""")
BOM = "\ufeff"  # by it a spreadsheet knows that the file is UTF-8


def safe(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return FORMULA.sub("'", text)


def rows(documents: list[dict]) -> list[list]:
    """A head and a row for each result: budget and times in seconds, a column for each check's state."""
    checks = list(dict.fromkeys(c["id"] for d in documents for c in d["checks"]))
    head = ["student", "status", "verdict", "score", "max_score", "seconds_to_target", "budget"]
    table = [[*head, *checks, "reason"]]
    for document in documents:
        states = {check["id"]: check["state"] for check in document["checks"]}
        table.append(
            [
                safe(document["submission"]["id"]),
                document["status"],
                document["verdict"],
                document["score"],
                document["max_score"],
                document["seconds_to_target"],
                (document["budget"] or {}).get("seconds"),
                *(states.get(check) for check in checks),
                safe(document["reason"] or ""),
            ]
        )
    return table


def write(documents: list[dict], file: TextIO) -> None:
    """Write the table to a file that was opened with newline="" and as UTF-8."""
    file.write(BOM)
    csv.writer(file).writerows(rows(documents))
