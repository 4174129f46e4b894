"""Find the submissions of a class: one folder or one .py file per student.

File names and contents are untrusted. This module follows no link, and neither parses nor runs anything. A
submission that cannot be graded is returned with a sentence that says why.
"""

import errno
import hashlib
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from hvdgrade import HvdgradeError
from hvdgrade.submission.script import MAX_SCRIPT_BYTES, SCRIPT

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NO_STUDENTS = ("__MACOSX", "__pycache__")


@dataclass(frozen=True)
class Submission:
    """The submission of one student.

    Attributes:
        id: name of the folder, or of the file without ".py". Bytes that are not UTF-8 are written as \\xNN.
        name: the id as a safe file name. No two ids have the same name.
        source: the bytes of the script, at most MAX_SCRIPT_BYTES + 1. The last byte shows that the script
            is too large.
        problem: one sentence that says why it cannot be graded; "" if it can.
        unreadable: whether the disk or missing permissions cause the problem, and not the student.
    """

    id: str
    name: str
    source: bytes = b""
    problem: str = ""
    unreadable: bool = False


class Problem(HvdgradeError):
    """A submission cannot be graded. The message says why in one sentence."""


class Unreadable(Problem):
    """A submission cannot be read now, but perhaps later: a network file system, or missing permissions."""


def find(folder: Path) -> tuple[list[Submission], list[str]]:
    """Find the submissions in a folder.

    Hidden entries, folders that macOS and Python create, and files that are neither scripts nor notebooks
    are not submissions. A notebook is a submission that cannot be graded, so that its student gets a result.

    Args:
        folder: folder with one folder or .py file per student.

    Returns:
        The submissions, sorted by id, and the names of files that are not submissions.

    Raises:
        OSError: the folder cannot be read.
    """
    handed_in: dict[str, list[os.DirEntry]] = {}
    notebooks, ignored = set(), []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
            is_folder = entry.is_dir(follow_symlinks=False) or (
                leads_to_folder(entry) and not is_script(entry.name)
            )
            if entry.name.startswith(".") or entry.name in NO_STUDENTS:
                continue
            if is_folder:
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
    # The file system of OUT may not distinguish Ada and ada.
    count = Counter(submission.name.lower() for submission in submissions)
    submissions = [
        replace(submission, name=hashed(submission.id))
        if count[submission.name.lower()] > 1
        else submission
        for submission in submissions
    ]
    return sorted(submissions, key=lambda submission: submission.id), ignored


def is_script(name: str) -> bool:
    """Return whether a file name ends like a Python script.

    Args:
        name: the file name.
    """
    return name.lower().endswith(".py")


def leads_to_folder(entry: os.DirEntry) -> bool:
    """Return whether an entry is a link to a folder, or a link whose target cannot be determined.

    Args:
        entry: an entry of the folder with the submissions.
    """
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:  # a symlink loop, or missing permissions
        return True


def read(path: Path) -> bytes:
    """Return the bytes of a script, or of the one script in a folder.

    Args:
        path: the script or the folder.

    Raises:
        Problem: it is a link, or the folder does not hold exactly one script.
        Unreadable: it cannot be read now.
    """
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
    except OSError as error:  # a broken disk, or a network file system
        raise Unreadable(f"its folder cannot be read ({error.strerror}).") from None
    finally:
        os.close(directory)


def read_file(name: str, directory: int | Path) -> bytes:
    """Return the bytes of a plain file, at most MAX_SCRIPT_BYTES + 1.

    Args:
        name: name of the file.
        directory: its folder, as an open file descriptor or as a path.

    Raises:
        Problem: it is a link, or not a plain file.
        Unreadable: it cannot be read now.
    """
    descriptor = {"dir_fd": directory} if isinstance(directory, int) else {}
    path = name if descriptor else directory / name
    try:
        # NONBLOCK: opening a named pipe would otherwise wait for a process that writes to it.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, **descriptor)
    except OSError as error:
        if error.errno == errno.ELOOP:
            problem = "is a symbolic link, which is not followed: hand in the file itself."
            raise Problem(f"{readable(name)} {problem}") from None
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
    """Return a file name as valid text, in which bytes that are not UTF-8 become \\xNN.

    Args:
        name: the file name, as `os.listdir` returns it.
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def safe_name(name: str) -> str:
    """Return a safe file name: `name` if it is plain, otherwise its plain characters, "~" and a hash.

    Args:
        name: any file name.
    """
    return name if PLAIN_NAME.fullmatch(name) else hashed(name)


def hashed(name: str) -> str:
    """Return the plain characters of a file name, "~" and a hash of the whole name.

    Args:
        name: any file name.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:60].lstrip(".-")
    return f"{plain}~{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
