"""Blackboard, "Assignment File Download": flat files ASSIGNMENT_USER_attempt_TIME[_FILE].

The file without FILE, ASSIGNMENT_USER_attempt_TIME.txt, is written by Blackboard. Its first line gives the
student's name and user name. A student who hands in again has several attempts.
"""

import os
import re
from pathlib import Path

from hvdgrade.batch.downloads import plain
from hvdgrade.batch.downloads.claim import Claim, Claims, Download, Entry

TITLE = "Blackboard"
ATTEMPT = re.compile(r"_attempt_([0-9]{4}(?:-[0-9]{2}){5})(?=_|\.txt\Z|\Z)")
ABOUT = re.compile(r"Name:\s*(.*?)\s*\(([^()]+)\)\s*\Z")


def read(download: Download) -> Claims:
    """Return the student of each file that Blackboard can have named."""
    files = [
        entry for entry in download.entries if not entry.is_folder and ATTEMPT.search(entry.name)
    ]
    about = {entry.name: first_line(entry.path) for entry in files if entry.name.endswith(".txt")}
    return {entry.name: [claim(entry, about)] for entry in files}


def claim(entry: Entry, about: dict[str, str]) -> Claim:
    """Return the student of a file that Blackboard named.

    Args:
        about: name of each text file -> its first line.
    """
    first, *others = ATTEMPT.finditer(entry.name)
    if others:  # the student put the pattern into the name of the file
        return plain.claim(entry)
    before, rest = entry.name[: first.start()], entry.name[first.end() :]
    name, user = "", before.rpartition("_")[2]
    known = ABOUT.match(about.get(f"{entry.name[: first.end()]}.txt", ""))
    if known and before.endswith(f"_{known[2]}"):  # a user name may contain "_"
        name, user = known.groups()
    file = "" if rest == ".txt" else rest.removeprefix("_")
    return Claim(user, file, name, sent=first[1], platform="blackboard")


def first_line(path: Path) -> str:
    """Return the first line of a text file, or "" if it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(file, "rb") as opened:
            return opened.readline(1000).decode("utf-8-sig", "replace")
    except OSError:
        return ""
