"""Show the lines of a script that a lab explains.

excerpt(LABS / "sharded_training.py", "fsdp")
"""

import ast
import textwrap
from pathlib import Path

from hvdlab import HvdlabError
from hvdlab.course import experiment


class ExcerptError(HvdlabError, ValueError):
    """A script has no function of that name."""


def excerpt(path: Path, name: str) -> None:
    """Show a function of a script, without its indentation.

    Args:
        name: name of the function. It may be defined inside another function or a class.

    Raises:
        ExcerptError: the script has no function of that name.
    """
    _show(path.name, function_source(path, name))


def function_source(path: Path, name: str) -> str:
    """Return the source of a function of a script, without its indentation.

    Args:
        name: name of the function. It may be defined inside another function or a class.

    Raises:
        ExcerptError: the script has no function of that name.
    """
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            lines = source.splitlines()[first - 1 : node.end_lineno]
            return textwrap.dedent("\n".join(lines))
    raise ExcerptError(f"{path.name} has no function named {name}")


def _show(file: str, code: str) -> None:
    """Show Python source in a notebook with colours, and elsewhere as it is."""
    if experiment.NOTEBOOK:
        from IPython.display import Markdown, display

        display(Markdown(f"From `labs/{file}`:\n\n```python\n{code}\n```"))
    else:
        print(f"From labs/{file}:\n\n{code}")
