"""Write the files that a command's options name.

The options are checked before minutes of work, and each file is written completely or not at all.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TextIO

from hvdgrade import HvdgradeError
from hvdgrade.submission.script import SCRIPT

OPTIONS = ("json", "html", "progress")  # two of them must not name the same file


class CannotWrite(HvdgradeError):
    """A file cannot be written. The message says why in one sentence."""


def check_options(args: argparse.Namespace) -> None:
    """Check that the files which the options name can be written, and that no file is named twice.

    Raises:
        CannotWrite: a file cannot be written, or would overwrite the submission or another result.
    """
    taken = {}
    if script := getattr(args, "path", None):
        script = script / SCRIPT if os.path.isdir(script) else script
        taken[os.path.realpath(script)] = "the submission"
    for option in OPTIONS:
        path = getattr(args, option, None)
        if path is None:
            continue
        if os.path.isdir(path):
            raise CannotWrite(f"{path} cannot be written: it is a folder.")
        plain = (os.path.isfile(path) or not os.path.exists(path)) and not stream(path)
        place = Path(os.path.realpath(path)) if plain else path
        # A plain file is replaced by a new one, which needs a writable folder. Only the progress is appended.
        needed = [place] if os.path.exists(place) else [place.parent]
        needed += [place.parent] if plain and option != "progress" else []
        if not all(os.access(target, os.W_OK) for target in needed):
            raise CannotWrite(f"{path} cannot be written: check the folder {place.parent}.")
        if plain and str(place) in taken:
            other = taken[str(place)]
            raise CannotWrite(f"--{option} {path} is also {other}: choose another file.")
        if plain:
            taken[str(place)] = f"the file of --{option}"


def stream(path: Path) -> TextIO | None:
    """Return stdout or stderr if it writes to this file, for example to /dev/stdout; None otherwise.

    If the stream is redirected, the file is a plain file, and other processes may be writing to it, too.
    """
    for candidate in (sys.stdout, sys.stderr):
        try:
            if os.path.samestat(os.stat(path), os.fstat(candidate.fileno())):
                return candidate
        except (
            OSError,
            ValueError,
        ):  # there is no such file, or the stream is closed or not a file
            continue
    return None


def write(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all.

    A device, a named pipe, or the file to which stdout or stderr writes is not replaced: the content is
    appended to it.

    Args:
        content: its content; text is encoded as UTF-8.

    Raises:
        CannotWrite: it cannot be written.
    """
    content = content.encode() if isinstance(content, str) else content
    try:
        if output := stream(path):
            output.flush()
            output.buffer.write(content)
            output.flush()
            return
        if path.exists() and not path.is_file():
            with path.open("ab") as file:
                file.write(content)
            return
        place = path.resolve()  # so that a link is not replaced by a file
        unfinished = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            unfinished.write_bytes(content)
            os.replace(unfinished, place)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror}") from None
