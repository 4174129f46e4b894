"""What a learning platform's download says about each of its files and folders."""

import os
from dataclasses import dataclass
from pathlib import Path

from hvdgrade.submission.find_script import CREATED_BY_PROGRAMS

# Files that an operating system, an editor or git creates. No student hands them in.
CLUTTER = (*CREATED_BY_PROGRAMS, ".DS_Store", ".localized")
CLUTTER_BEGINS = (
    "._",
    "~$",
    ".~lock.",
    ".git",
    ".ipynb_checkpoints",
    ".Trash",
    ".Spotlight",
    ".nfs",
)


@dataclass(frozen=True)
class Entry:
    """A file or folder at the top of the download.

    Attributes:
        name: its name, as `os.scandir` returns it.
        path: where it lies.
        is_folder: whether it is a folder. A link is never a folder.
    """

    name: str
    path: Path
    is_folder: bool


@dataclass(frozen=True)
class Claim:
    """A file or folder belongs to a student.

    Attributes:
        id: the student's id.
        file: the name that the student gave the file. For a folder, and for a file that the platform itself
            wrote about the submission, it is "".
        name: the student's name, if the platform gives it.
        email: the student's e-mail address, if the platform gives it.
        sent: when it was handed in, as text that sorts by time; "" if the platform does not say it.
        platform: the platform that issued the id; "" if the id is only the name of a file or folder.
    """

    id: str
    file: str = ""
    name: str = ""
    email: str = ""
    sent: str = ""
    platform: str = ""


@dataclass(frozen=True)
class Download:
    """The folder of a class.

    Attributes:
        folder: where it lies.
        entries: its content.
        is_named: whether the instructor has named the platform, so that it need not be recognised.
        logins: what the instructor's table of ids calls the students. It may be empty.
    """

    folder: Path
    entries: list[Entry]
    is_named: bool = False
    logins: frozenset[str] = frozenset()


# Name of an entry -> the students to whom it belongs. An entry with an empty list belongs to the platform.
# An entry that the platform cannot have made is missing.
Claims = dict[str, list[Claim]]


def entries_of(folder: Path) -> list[Entry]:
    """Return the files and folders in a folder, without clutter, sorted by name.

    Raises:
        OSError: it cannot be read.
    """
    with os.scandir(folder) as entries:
        found = [
            Entry(entry.name, Path(entry.path), entry.is_dir(follow_symlinks=False))
            for entry in entries
            if entry.name not in CLUTTER and not entry.name.startswith(CLUTTER_BEGINS)
        ]
    return sorted(found, key=lambda entry: os.fsencode(entry.name))
