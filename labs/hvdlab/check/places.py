"""Lines of a script and of its own modules, as one kind of number.

A line of the script is its number. The lines of each module in the script's folder follow in a block of their
own, so that they can be compared, sorted and written down like those of the script.
"""

import re
import zlib
from collections.abc import Mapping

BLOCK = 1_000_000  # more lines than a file has
IN_TEXT = re.compile(r"\bline (\d{7,})\b")


def block(module: str) -> int:
    """Return what is added to the lines of a module.

    Args:
        module: its path, relative to the script's folder. It is the same on all ranks.
    """
    return (1 + zlib.crc32(module.encode()) % 1_000_000) * BLOCK


class Places:
    """Where lines are.

    Args:
        modules: block -> path of a module, relative to the script's folder.
    """

    def __init__(self, modules: Mapping[int, str]) -> None:
        self.modules = modules

    def file(self, line: int | None) -> str | None:
        """Return the module of a line; None for the script."""
        return self.modules.get((line or 0) // BLOCK * BLOCK)

    def number(self, line: int | None) -> int | None:
        """Return the number of a line in its file."""
        return line and line % BLOCK

    def text(self, sentence: str) -> str:
        """Return a sentence in which the lines of modules name their files."""
        return IN_TEXT.sub(lambda found: self._named(int(found[1])), sentence)

    def _named(self, line: int) -> str:
        return f"line {self.number(line)} of {self.file(line)}"
