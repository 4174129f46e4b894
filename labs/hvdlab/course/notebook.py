"""Prepare the notebook of a lab: no log lines of TensorFlow, and one line for an unsolved exercise."""

import re
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from hvdlab.system import tensorflow_log

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

STUB = re.compile(
    r"Lab \d+, exercise \d+: .+"
)  # what notebooks/build.py writes in place of a solution


def prepare() -> None:
    """Change how this process shows log lines and unsolved exercises, if it runs a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        tensorflow_log.quiet_notebook()
        shell.set_custom_exc((NotImplementedError,), _show)


def not_yet(message: str) -> str:
    """Return the line that a notebook shows for an exercise without a right answer."""
    return f"Not yet: {message}"


def _show(
    shell: "InteractiveShell",
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    """Show an error of a cell: a stub in one line, every other error with its traceback."""
    if stub := STUB.search(str(error)):
        shell._showtraceback(kind, error, [not_yet(stub[0])])
    else:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
