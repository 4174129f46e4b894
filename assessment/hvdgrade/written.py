"""The files that a command is told to write: asked for before minutes of work, written whole."""

import argparse
import os
from pathlib import Path

from hvdgrade.submission import SCRIPT

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
        plain = os.path.isfile(path) or not os.path.exists(path)
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


def write(text: str, path: Path) -> None:
    """Write a file whole or not at all; a device or a pipe, as /dev/stdout, is written into.

    Raises:
        CannotWrite: where that fails.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
            return
        place = path.resolve()  # a link stays one
        part = place.with_name(f".{place.name}.{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        os.replace(part, place)
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror}") from None
