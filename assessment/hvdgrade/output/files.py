"""The files that a command is told to write: asked for before minutes of work, written whole."""

import argparse
import os
import sys
from pathlib import Path

from hvdgrade.submission.script import SCRIPT

OPTIONS = ("json", "html", "progress")  # each file once


class CannotWrite(Exception):
    """A file that cannot be written: one sentence."""


def ask(args: argparse.Namespace) -> None:
    """Raises CannotWrite if one of the files that `args` names cannot be written, or must not be."""
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
        # A plain file is replaced, which its folder must allow; the progress is appended.
        needed = [place] if os.path.exists(place) else [place.parent]
        needed += [place.parent] if plain and option != "progress" else []
        if not all(os.access(each, os.W_OK) for each in needed):
            raise CannotWrite(f"{path} cannot be written: look at the folder {place.parent}.")
        if plain and str(place) in taken:
            other = taken[str(place)]
            raise CannotWrite(f"--{option} {path} is {other} as well: choose another file.")
        if plain:
            taken[str(place)] = f"the file of --{option}"


def stream(path: Path):
    """The one of our streams that goes to this very file, as /dev/stdout does; None if none does.

    Where it is redirected, that is a plain file, to which others may be writing too.
    """
    for ours in (sys.stdout, sys.stderr):
        try:
            if os.path.samestat(os.stat(path), os.fstat(ours.fileno())):
                return ours
        except (OSError, ValueError):  # no such file; a stream that is no file, or closed
            continue
    return None


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; a device, a pipe, or what our output goes to, is written into.

    Raises:
        CannotWrite: where that fails.
    """
    content = content.encode() if isinstance(content, str) else content
    try:
        if ours := stream(path):
            ours.flush()
            ours.buffer.write(content)
            ours.flush()
            return
        if path.exists() and not path.is_file():
            with path.open("ab") as file:
                file.write(content)
            return
        place = path.resolve()  # a link stays one
        part = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            part.write_bytes(content)
            os.replace(part, place)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror}") from None
