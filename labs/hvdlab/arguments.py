"""Numbers on a command line, as types for argparse: what makes no sense is refused in one sentence.

parser.add_argument("--steps", type=positive)
parser.add_argument("--lr", type=above_zero)
"""

import math
from argparse import ArgumentTypeError


def positive(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"expected 1 or more, got {number}")
    return number


def above_zero(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"expected a number above 0, got {text}")
    return number
