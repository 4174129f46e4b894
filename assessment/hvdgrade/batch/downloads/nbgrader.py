"""nbgrader, the folder `submitted`: STUDENT/ASSIGNMENT/, each with a file timestamp.txt."""

import os
from pathlib import Path

from hvdgrade.batch.downloads.claim import Claim, Claims, Download

TITLE = "nbgrader"
TIMESTAMP = "timestamp.txt"


def read(download: Download) -> Claims:
    """Return the student of each folder that nbgrader can have made."""
    return {
        entry.name: [Claim(entry.name)]
        for entry in download.entries
        if entry.is_folder and holds_assignment(entry.path)
    }


def holds_assignment(folder: Path) -> bool:
    """Return whether a folder holds a folder of an assignment."""
    try:
        return any(os.path.exists(path / TIMESTAMP) for path in folder.iterdir())
    except OSError:  # missing permissions, or a network file system
        return False
