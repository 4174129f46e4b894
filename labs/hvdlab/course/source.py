"""Show a learner the source of a function that a lab uses."""

import inspect
import textwrap
from collections.abc import Callable

from hvdlab.course import experiment


def source_text(function: Callable) -> str:
    """Return the source of a function without its docstring."""
    text = textwrap.dedent(inspect.getsource(function))
    start = text.find('"""')
    if inspect.getdoc(function) is None or start < 0:
        return text
    end = text.index('"""', start + 3) + 3
    return text[: text.rindex("\n", 0, start)] + text[end:].rstrip() + "\n"


def show_source(*functions: Callable) -> None:
    """Show the source of functions, with colours in a notebook and as plain text elsewhere."""
    text = "\n".join(source_text(function) for function in functions)
    if experiment.NOTEBOOK:
        from IPython.display import Code, display

        display(Code(text, language="python"))
    else:
        print(text)
