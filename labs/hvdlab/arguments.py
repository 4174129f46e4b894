"""Numbers and files on a command line, as types for argparse: what makes no sense is refused in one sentence.

parser.add_argument("--steps", type=positive)
parser.add_argument("--width", type=whole_number(8, step=8))
parser.add_argument("--lr", type=above_zero)
parser.add_argument("--save", type=file_to_write)
"""

import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path


def whole_number(least: int, step: int = 1) -> Callable[[str], int]:
    """The type of `least` and of what follows in steps of `step`."""
    expected = f"{least} or more" if step == 1 else f"{least}, {least + step}, ..."

    def number(text: str) -> int:
        if text.isdecimal() and int(text) in range(least, sys.maxsize, step):
            return int(text)
        raise ArgumentTypeError(f"expected {expected}, got {text}")

    return number


positive = whole_number(1)


def above_zero(text: str) -> float:
    """A finite number above 0."""
    return _finite(text, lambda value: value > 0, "a number above 0")


def non_negative(text: str) -> float:
    """A finite number, 0 or above."""
    return _finite(text, lambda value: value >= 0, "0 or a number above it")


def from_0_to_1(text: str) -> float:
    return _finite(text, lambda value: 0 <= value <= 1, "0 to 1")


def _finite(text, fits, expected):
    try:
        if fits(float(text)) and float(text) < math.inf:
            return float(text)
    except ValueError:
        pass  # no number at all
    raise ArgumentTypeError(f"expected {expected}, got {text}")


def file_to_write(text: str) -> Path:
    """A file that can be made at the end: its folder is looked for before hours are spent."""
    path = Path(text)
    if path.parent.is_dir() and not path.is_dir():
        return path
    raise ArgumentTypeError(f"expected a file in a folder that is there, got {text}")


def folder_to_write(text: str) -> str:
    """A folder that is there or can be made, and is made now: before hours are spent."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentTypeError(f"expected a folder, got {text} ({error.strerror})") from None
    return text
