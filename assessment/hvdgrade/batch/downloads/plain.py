"""A folder or a .py file per student, named by the student's id."""

from hvdgrade.batch.downloads.claim import Claim, Claims, Download, Entry
from hvdgrade.submission.find_script import KINDS
from hvdgrade.submission.script import SCRIPT

TITLE = "a folder or file per student"
ENDINGS = sorted((".py", *(end for end in KINDS if end.startswith("."))), key=len, reverse=True)


def read(download: Download) -> Claims:
    """Return the student of each entry: its name, without the ending of a file."""
    return {entry.name: [claim(entry)] for entry in download.entries}


def claim(entry: Entry) -> Claim:
    """Return the student whose id is the name of a file or folder."""
    if entry.is_folder:
        return Claim(entry.name)
    is_script = entry.name.lower().endswith(".py")
    return Claim(without_ending(entry.name), SCRIPT if is_script else entry.name)


def without_ending(name: str) -> str:
    """Return a file name without a known ending, for example "ada" for "ada.py" and for "ada.tar.gz"."""
    for ending in ENDINGS:
        if name.lower().endswith(ending) and len(name) > len(ending):
            return name[: -len(ending)]
    return name
