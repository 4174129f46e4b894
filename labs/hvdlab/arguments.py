"""Numbers on a command line, as types for argparse: what makes no sense is refused in one sentence.

parser.add_argument("--steps", type=positive)
parser.add_argument("--width", type=whole_number(8, step=8))
parser.add_argument("--lr", type=above_zero)
"""

import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable


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
    try:
        if 0 < float(text) < math.inf:
            return float(text)
    except ValueError:
        pass  # no number at all
    raise ArgumentTypeError(f"expected a number above 0, got {text}")
