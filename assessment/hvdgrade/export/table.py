"""The results as a table that a spreadsheet can open without running anything.

A cell that begins like a formula gets an apostrophe in front. So does one that begins with an apostrophe:
dropping one apostrophe from the front of a cell always gives the text back.
"""

import csv
from typing import TextIO

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'")


def safe(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


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
    """Write the table to a file that was opened with newline=""."""
    csv.writer(file).writerows(rows(documents))
