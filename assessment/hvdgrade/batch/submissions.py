"""Finds what a class handed in: one folder or one .py file a student.

Names and files are strangers' data. No link is followed, nothing is parsed or run here, and what cannot
be graded gets a sentence instead of an exception.
"""

import errno
import hashlib
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from hvdgrade.submission.script import MAX_SCRIPT_BYTES, SCRIPT

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NO_STUDENTS = ("__MACOSX", "__pycache__")


@dataclass(frozen=True)
class Submission:
    """What one student handed in.

    Attributes:
        id: the name of the folder, or of the file without ".py"; bytes that are no UTF-8 as \\xNN.
        name: the same, safe as a file name; two ids never share one.
        source: the script's bytes; one more than a script may have says that it is too large.
        problem: why it cannot be graded, one sentence; empty if it can.
        unreadable: the problem is one of the disk or of rights, and not the student's.
    """

    id: str
    name: str
    source: bytes = b""
    problem: str = ""
    unreadable: bool = False


class Problem(Exception):
    """Why something that was handed in cannot be graded."""


class Unreadable(Problem):
    """It may be read the next time: a network's file system, a folder that is closed to us."""


def find(folder: Path) -> tuple[list[Submission], list[str]]:
    """The submissions in `folder`, sorted by id, and the names of entries that are none.

    Hidden entries, folders that macOS and Python make, and files that are neither scripts nor notebooks
    are no submissions. A notebook is one that cannot be graded, so that its student is not forgotten.
    """
    handed_in: dict[str, list[os.DirEntry]] = {}
    notebooks, ignored = set(), []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
            a_folder = entry.is_dir(follow_symlinks=False) or (
                leads_to_folder(entry) and not is_script(entry.name)
            )
            if entry.name.startswith(".") or entry.name in NO_STUDENTS:
                continue
            if a_folder:
                handed_in.setdefault(entry.name, []).append(entry)
            elif is_script(entry.name):
                handed_in.setdefault(entry.name[: -len(".py")], []).append(entry)
            elif entry.name.lower().endswith(".ipynb"):
                notebooks.add(entry.name[: -len(".ipynb")])
            else:
                ignored.append(readable(entry.name))
    submissions = []
    for name, entries in handed_in.items():
        source, problem, unreadable = b"", "", False
        try:
            if len(entries) > 1:
                raise Problem(
                    "handed in as a folder and as a .py file, or twice: keep one of them."
                )
            source = read(Path(entries[0].path))
        except Problem as error:
            problem, unreadable = str(error), isinstance(error, Unreadable)
        submissions.append(Submission(readable(name), safe_name(name), source, problem, unreadable))
    for name in notebooks - set(handed_in):
        problem = f"it is a notebook: hand in one file named {SCRIPT}."
        submissions.append(Submission(readable(name), safe_name(name), problem=problem))
    # Where OUT lies, Ada and ada may be one file.
    alike = Counter(one.name.lower() for one in submissions)
    submissions = [
        replace(one, name=hashed(one.id)) if alike[one.name.lower()] > 1 else one
        for one in submissions
    ]
    return sorted(submissions, key=lambda one: one.id), ignored


def is_script(name: str) -> bool:
    return name.lower().endswith(".py")


def leads_to_folder(entry: os.DirEntry) -> bool:
    """Whether it is a link to a folder, or one of which nobody can tell: handed in for a folder."""
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:  # a loop of links, a place that is closed to us
        return True


def read(path: Path) -> bytes:
    """The bytes of the script `path`, or of the one script in the folder `path`."""
    if path.is_symlink():
        raise Problem("it is a symbolic link, which is not followed: hand in the file itself.")
    if not path.is_dir():
        return read_file(path.name, directory=path.parent)
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise Unreadable(f"its folder cannot be read ({error.strerror}).") from None
    try:
        names = os.listdir(directory)
        scripts = sorted(n for n in names if is_script(n) and not n.startswith("."))
        if SCRIPT in scripts:
            scripts = [SCRIPT]
        if not scripts:
            raise Problem(f"its folder holds no .py file: hand in one file named {SCRIPT}.")
        if len(scripts) > 1:
            listed = ", ".join(map(readable, scripts[:5])) + (", ..." if scripts[5:] else "")
            raise Problem(
                f"its folder holds {len(scripts)} .py files ({listed}) and none is named {SCRIPT}: "
                "hand in one."
            )
        return read_file(scripts[0], directory)
    except OSError as error:  # a broken disk, a network's file system
        raise Unreadable(f"its folder cannot be read ({error.strerror}).") from None
    finally:
        os.close(directory)


def read_file(name: str, directory: int | Path) -> bytes:
    """The bytes of a plain file in a folder, given as an open descriptor or as a path."""
    place = {"dir_fd": directory} if isinstance(directory, int) else {}
    path = name if place else directory / name
    try:
        # NONBLOCK: opening a pipe must not wait for somebody who writes to it.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, **place)
    except OSError as error:
        if error.errno == errno.ELOOP:
            why = "is a symbolic link, which is not followed: hand in the file itself."
            raise Problem(f"{readable(name)} {why}") from None
        raise Unreadable(f"{readable(name)} cannot be read ({error.strerror}).") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Problem(f"{readable(name)} is not a plain file: hand in one file named {SCRIPT}.")
        with open(file, "rb", closefd=False) as opened:
            return opened.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"{readable(name)} cannot be read ({error.strerror}).") from None
    finally:
        os.close(file)


def readable(name: str) -> str:
    """A file name as text that can be written anywhere: bytes that are no UTF-8 become \\xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def safe_name(name: str) -> str:
    """A file name for `name`: itself if it is plain, else its plain part, "~" and a hash of it all."""
    return name if PLAIN_NAME.fullmatch(name) else hashed(name)


def hashed(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:60].lstrip(".-")
    return f"{plain}~{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
