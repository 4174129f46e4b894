"""Types for argparse: numbers and files on a command line. Each refuses a wrong value with one sentence.

parser.add_argument("--steps", type=positive)
parser.add_argument("--width", type=whole_number(8, step=8))
parser.add_argument("--lr", type=above_zero)
parser.add_argument("--save", type=file_to_write)

argparse prints the sentence of an ArgumentTypeError after the name of the argument, and ends the program with
exit code 2.
"""

from __future__ import annotations  # because `hvdlab doctor` also starts with Python 3.8

import math
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path


def whole_number(least: int, step: int = 1) -> Callable[[str], int]:
    """Return the type of the whole numbers `least`, `least + step`, `least + 2 * step` and so on.

    Args:
        least: the smallest number that is allowed, 0 or more.
        step: distance between allowed numbers. Default 1.

    Returns:
        A function that converts text to such a number, or raises ArgumentTypeError.
    """
    expected = f"{least} or more" if step == 1 else f"{least}, {least + step}, ..."

    def number(text: str) -> int:
        if text.isdecimal() and int(text) in range(least, sys.maxsize, step):
            return int(text)
        raise ArgumentTypeError(f"expected {expected}, got {text}")

    return number


positive = whole_number(1)


def _finite(is_allowed: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    """Return the type of the finite numbers that are allowed; its error says what was `expected`."""

    def number(text: str) -> float:
        try:
            if is_allowed(float(text)) and float(text) < math.inf:
                return float(text)
        except ValueError:
            pass  # the text is no number
        raise ArgumentTypeError(f"expected {expected}, got {text}")

    return number


above_zero = _finite(lambda value: value > 0, "a number above 0")
non_negative = _finite(lambda value: value >= 0, "0 or a number above it")
from_0_to_1 = _finite(lambda value: 0 <= value <= 1, "0 to 1")


def file_to_write(text: str) -> Path:
    """Return the path of a file that a script will write at its end.

    The folder is checked now, so that a typing error does not cost hours of training.

    Raises:
        ArgumentTypeError: the folder of the file does not exist, or the path is itself a folder.
    """
    path = Path(text)
    if path.parent.is_dir() and not path.is_dir():
        return path
    raise ArgumentTypeError(f"expected a file in a folder that exists, got {text}")


def folder_to_write(text: str) -> str:
    """Return the path of a folder that a script will make or write to.

    The path is checked now, so that a typing error does not cost hours of training. The folder is not made,
    because another argument may be wrong.

    Raises:
        ArgumentTypeError: the folder cannot be made or written to.
    """
    if place := obstacle(Path(text)):
        raise ArgumentTypeError(
            f"expected a folder, got {text}: {place} is no folder, or is read-only"
        )
    return text


def obstacle(folder: Path) -> Path | None:
    """Return the file or folder because of which a folder cannot be made or written to, or None.

    Args:
        folder: the folder, which need not exist.
    """
    folder = Path(os.path.abspath(folder))
    place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    return None if place.is_dir() and os.access(place, os.W_OK | os.X_OK) else place
