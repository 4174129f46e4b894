"""Write results as a CSV table that a spreadsheet opens without executing any formula.

A spreadsheet evaluates a cell that begins like a formula, so this module puts an apostrophe before such text.
It also does so inside a cell after a semicolon, a tab, or a line break, where a spreadsheet with other
settings may start a new cell, and after a quote, which may end the cell there. Text that begins with an
apostrophe gets another one, so removing one apostrophe in each of these places restores the original text.
"""

import csv
import io
import re

from hvdgrade.result_document import ResultDocument

FORMULA = re.compile(r"""(?:\A|(?<=[;\t\r\n"]))(?=[=+\-@\t\r\n'])""")
BOM = "\ufeff"  # byte order mark, by which a spreadsheet recognises UTF-8


def safe(text: str) -> str:
    """Return the text with apostrophes, so that no spreadsheet takes any of it for a formula."""
    return FORMULA.sub("'", text)


def rows(documents: list[ResultDocument]) -> list[list]:
    """Return the header and a row per result. Budget and times are in seconds; each check has a column.

    The column left_out names the files that were handed in but not graded.
    """
    checks = list(dict.fromkeys(c["id"] for d in documents for c in d["checks"]))
    head = ["student", "status", "verdict", "score", "max_score", "seconds_to_target", "budget"]
    table_rows = [[*head, *checks, "reason", "name", "email", "left_out"]]
    for document in documents:
        states = {check["id"]: check["state"] for check in document["checks"]}
        table_rows.append(
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
                safe(document["submission"].get("name") or ""),
                safe(document["submission"].get("email") or ""),
                safe(", ".join(document["submission"].get("left_out") or [])),
            ]
        )
    return table_rows


def table(documents: list[ResultDocument]) -> bytes:
    """Return the CSV file in UTF-8."""
    file = io.StringIO(newline="")
    file.write(BOM)
    csv.writer(file).writerows(rows(documents))
    return file.getvalue().encode()
