"""nbgrader, the folder `submitted`: STUDENT/ASSIGNMENT/, each with a file timestamp.txt."""

from pathlib import Path

from hvdgrade.batch.downloads.claim import Claim, Claims, Entry

TITLE = "nbgrader"
TIMESTAMP = "timestamp.txt"


def read(folder: Path, entries: list[Entry]) -> Claims:
    """Return the student of each folder that nbgrader can have made.

    Args:
        folder: the folder of the class.
        entries: its content.
    """
    return {
        entry.name: [Claim(entry.name)]
        for entry in entries
        if entry.is_folder and any(entry.path.glob(f"*/{TIMESTAMP}"))
    }
