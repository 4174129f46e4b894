"""Find the one script of a submission among the files that were handed in.

`hvdgrade run` and `hvdgrade batch` choose the script by the same rule. A file named assessment.py comes
first, also in other letter case, then a name that begins with "assessment". Of several such files, the one
that lies less deep comes first. Any other .py file is chosen only if it is the only one. If two files are
equal, neither is chosen.

File names and contents are untrusted. This module follows no link, unpacks no archive, and neither parses nor
runs anything.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hvdgrade.submission.script import (
    MAX_SCRIPT_BYTES,
    SCRIPT,
    NotGradable,
    Script,
    require_gradable,
)

MAX_DEPTH, MAX_FILES, MAX_LISTED = 6, 2000, 5
# Files and folders that programs create and no student hands in.
CREATED_BY_PROGRAMS = ("__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini")
# nbgrader and Classroom 50 write these into a submission.
CLUTTER = (*CREATED_BY_PROGRAMS, "timestamp.txt", "result.json", "results.json")
# The end of a file name -> what such a file is. The first that fits counts.
KINDS = {
    "onlinetext.html": "text that was typed into the learning platform",
    "_text.html": "text that was typed into the learning platform",
    "_link.html": "a link to a web page",
    ".ipynb": "a notebook",
    ".py.txt": "a script whose name ends in .txt instead of .py",
    **dict.fromkeys((".zip",), "a zip archive"),
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2"), "a tar archive"),
    **dict.fromkeys((".7z", ".rar", ".gz", ".xz", ".bz2"), "an archive"),
    ".pdf": "a PDF document",
    **dict.fromkeys((".doc", ".docx", ".odt", ".rtf", ".pages"), "a word processor's document"),
    **dict.fromkeys((".htm", ".html"), "a web page"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".heic"), "an image"),
    **dict.fromkeys((".txt", ".md"), "a text file"),
}


@dataclass(frozen=True)
class File:
    """A file or folder that was handed in.

    Attributes:
        path: where it lies.
        name: its path within the submission, with the name that the student gave it. "" for the folder
            whose content is the submission.
        label: what messages call it. Default: its name.
    """

    path: Path
    name: str
    label: str = ""

    @property
    def shown(self) -> str:
        """What messages call it, with \\xNN for bytes that are not UTF-8."""
        return readable(self.label or self.name)

    @property
    def is_script(self) -> bool:
        """Whether the name ends like the name of a Python script."""
        return self.name.lower().endswith(".py")


class Unreadable(NotGradable):
    """A submission cannot be read now, but perhaps later: a network file system, or missing permissions."""


def read_script(path: Path) -> bytes:
    """Return the bytes of a submission that can be graded.

    Raises:
        NotGradable: there is no such file, or it is not a training script.
        OSError: this machine is too busy, or has too little memory, to check that.
    """
    if not os.path.lexists(path):
        raise NotGradable(f"{path} does not exist: hand in one file named {SCRIPT}.")
    if path.is_dir():
        script = find_script([File(path.resolve(), "")])
    else:
        script = find_script([File(path, path.name)])
        neighbours = (entry.name for entry in files_in(File(path.resolve().parent, ""), depth=1))
        script = replace(script, left_out=tuple(name for name in neighbours if name != path.name))
    require_gradable(script)
    return script.source


def find_script(parts: Sequence[File]) -> Script:
    """Choose and read the script of a submission.

    Raises:
        NotGradable: none or several of the files could be the script, or it is not a plain file.
        Unreadable: it cannot be read now.
    """
    files = [file for part in parts for file in files_in(part)]
    scripts = sorted((file for file in files if file.is_script), key=preference)
    if not scripts:
        raise NotGradable(without_script(files))
    best = [file for file in scripts if preference(file) == preference(scripts[0])]
    if len(best) > 1:
        raise NotGradable(
            f"{len(best)} .py files could be the script ({listed(best)}): hand in one file named {SCRIPT}."
        )
    left_out = tuple(file.shown for file in files if file is not best[0])
    return Script(best[0].path, best[0].shown, read_file(best[0]), left_out)


def files_in(part: File, depth: int = MAX_DEPTH) -> list[File]:
    """Return the files of a part of a submission, first those that lie less deep.

    Args:
        depth: number of levels of folders to look into. Default: MAX_DEPTH.

    Raises:
        NotGradable: it is a link, or a folder with too many files.
        Unreadable: a folder cannot be read now.
    """
    try:
        kind = part.path.lstat().st_mode
    except OSError as error:
        raise Unreadable(f"{readable(part.path.name)} cannot be read ({error.strerror}).") from None
    if stat.S_ISLNK(kind):
        raise NotGradable("it is a symbolic link, which is not followed: hand in the file itself.")
    if not stat.S_ISDIR(kind):
        return [part]
    found, folders = [], [part]
    for _ in range(depth):
        deeper = []
        for file, is_folder in (entry for folder in folders for entry in entries_of(folder)):
            (deeper if is_folder else found).append(file)
            if len(found) + len(deeper) > MAX_FILES:
                if any(preference(file)[0] == 0 for file in found):
                    return found
                raise NotGradable(
                    f"it holds more than {MAX_FILES} files: hand in one file named {SCRIPT}."
                )
        folders = deeper
    return found


def entries_of(folder: File) -> Iterator[tuple[File, bool]]:
    """Yield the entries of a folder, and whether each one is a folder; hidden ones are left out.

    Raises:
        Unreadable: it cannot be read now.
    """
    name, label = (f"{text}/" if text else "" for text in (folder.name, folder.label))
    try:
        with os.scandir(folder.path) as entries:
            for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
                if entry.name.startswith(".") or entry.name in CLUTTER:
                    continue
                label_of_entry = label + entry.name if label else ""
                file = File(Path(entry.path), name + entry.name, label_of_entry)
                yield file, entry.is_dir(follow_symlinks=False)
    except OSError as error:  # a broken disk, a network file system, or missing permissions
        raise Unreadable(f"its folder cannot be read ({error.strerror}).") from None


def preference(file: File) -> tuple[int, int, bool]:
    """Return the place of a file in the order in which scripts are chosen; the lowest is chosen."""
    name = file.name.rpartition("/")[2]
    lower = name.casefold()
    kind = 0 if lower == SCRIPT else 1 if lower.startswith(Path(SCRIPT).stem) else 2
    depth = file.name.count("/") if kind < 2 else 0  # utils.py can lie above src/train.py
    return kind, depth, kind == 0 and name != SCRIPT


def without_script(files: Sequence[File]) -> str:
    """Return a sentence that says what was handed in instead of a script."""
    if not files:
        return f"its folder holds no .py file: hand in one file named {SCRIPT}."
    if len(files) == 1:
        return (
            f"it is {kind_of(files[0].name)} ({files[0].shown}): hand in one file named {SCRIPT}."
        )
    return f"it holds no .py file but {listed(files)}: hand in one file named {SCRIPT}."


def kind_of(name: str) -> str:
    """Return in words what a file is, judged by its name."""
    for end, kind in KINDS.items():
        if name.lower().endswith(end):
            return kind
    ending = Path(name).suffix
    return f"a file that ends in {readable(ending)}" if ending else "a file without an ending"


def listed(files: Sequence[File]) -> str:
    """Return the first names of some files."""
    names = [file.shown for file in files]
    if len(set(names)) < len(names):  # the same name in several folders
        names = [f"{readable(file.path.parent.name)}/{file.shown}" for file in files]
    return ", ".join(names[:MAX_LISTED]) + ", ..." * (len(names) > MAX_LISTED)


def read_file(file: File) -> bytes:
    """Return the bytes of a plain file, at most MAX_SCRIPT_BYTES + 1.

    Raises:
        NotGradable: it is a link, or not a plain file.
        Unreadable: it cannot be read now.
    """
    try:
        # NONBLOCK: opening a named pipe would otherwise wait for a process that writes to it.
        opened = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotGradable(
                f"{file.shown} is a symbolic link, which is not followed: hand in the file itself."
            ) from None
        raise Unreadable(f"{file.shown} cannot be read ({error.strerror}).") from None
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise NotGradable(f"{file.shown} is not a plain file: hand in one file named {SCRIPT}.")
        with open(opened, "rb", closefd=False) as content:
            return content.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"{file.shown} cannot be read ({error.strerror}).") from None
    finally:
        os.close(opened)


def readable(name: str) -> str:
    """Return a file name as valid text, in which bytes that are not UTF-8 become \\xNN."""
    return in_bytes(name).decode("utf-8", "backslashreplace")


def in_bytes(name: str) -> bytes:
    """Return the bytes of a file name, or of an id that the user's locale cannot encode."""
    try:
        return os.fsencode(name)
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape")
