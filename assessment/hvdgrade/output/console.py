"""Print to a terminal or pipe whose reader may close early, as in `hvdgrade run ... | head`."""

import os
import sys

from rich.console import Console


class Terminal(Console):
    """A console that ignores a closed pipe, so that the exit code can still report the verdict."""

    def on_broken_pipe(self) -> None:
        """Discard all further output. Rich calls this when the pipe is closed."""
        self.quiet = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(null)


def for_lines(stderr: bool = False) -> Terminal:
    """Return a console that prints lines with untrusted names unchanged: without wrapping, markup or colour.

    Args:
        stderr: whether to print to stderr instead of stdout. Default: False.
    """
    return Terminal(stderr=stderr, soft_wrap=True, markup=False, emoji=False, highlight=False)
