"""Print to a terminal or pipe whose reader may close early, as in `hvdgrade run ... | head`."""

import os
import sys

from rich.console import Console


class Terminal(Console):
    """A console that ignores a closed pipe, so that the exit code can still report the verdict."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(nowhere)


def for_lines(stderr: bool = False) -> Terminal:
    """For whole lines that hold names of strangers: as they are, neither broken nor coloured."""
    return Terminal(stderr=stderr, soft_wrap=True, markup=False, emoji=False, highlight=False)
