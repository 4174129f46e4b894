"""Show the result of a check: a coloured box in a notebook, one line of text elsewhere.

The box has links to the script of the learner that the text names, or that of the notebook. In JupyterLab the
extension of the course opens them next to the notebook (hvdlab/jupyter/labextension).
"""

import html
import os
import re
from pathlib import Path
from urllib.parse import quote

from hvdlab.course import experiment

COLOURS = {
    "Right": "#2e7d32",
    "Not yet": "#b26a00",
}  # also readable on a dark page: only the border has them
NAMES = ("SCRIPT", "script")  # variables of the labs that hold the path of the learner's script
LINE = re.compile(r"\bline (\d+)")
FILE = re.compile(r"\b[\w-]+\.py\b")
CODE = re.compile(r"`([^`]+)`")


def show(verdict: str, text: str) -> str:
    """Show a verdict, "Right" or "Not yet", and its text as a box if this is a notebook.

    Returns:
        The same as one line of text.
    """
    line = f"{verdict}: {text}"
    if experiment.NOTEBOOK:
        from IPython.display import display

        display({"text/plain": line, "text/html": box(verdict, text, _script(text))}, raw=True)
    return line


def box(verdict: str, text: str, script: Path | None) -> str:
    """Return the box as HTML.

    Args:
        script: the learner's script. None: the box has no links.
    """
    colour = COLOURS[verdict]
    kind = verdict.lower().replace(" ", "-")
    style = (
        f"border-left: 4px solid {colour}; background: {colour}18; padding: 6px 10px; "
        "white-space: pre-wrap; overflow-wrap: anywhere"
    )
    said = CODE.sub(r"<code>\1</code>", html.escape(text))
    links = f"\n{' &nbsp; '.join(_links(text, script))}" if script else ""
    return f'<div class="hvdlab-{kind}" style="{style}"><b>{verdict}:</b> {said}{links}</div>'


def _links(text: str, script: Path) -> list[str]:
    """Return links to the lines of the script that a text names, or else to the script."""
    lines = dict.fromkeys(map(int, LINE.findall(text)))
    places = {f"#line={line - 1}": f"Open line {line} of {script.name}" for line in lines}
    name = quote(os.path.relpath(script))  # a kernel runs in the folder of its notebook
    return [
        f'<a class="hvdlab-script" href="{name}{place}">{html.escape(label)}</a>'
        for place, label in (places or {"": f"Open {script.name} next to this notebook"}).items()
    ]


def _script(text: str) -> Path | None:
    """Return the script that a text names, or else that of this notebook.

    It must lie in the folder of the notebook, in which a kernel runs.
    """
    from IPython import get_ipython

    named = [Path.cwd() / name for name in FILE.findall(text)]
    for script in [*named, *map(get_ipython().user_ns.get, NAMES)]:
        if isinstance(script, Path) and script.is_relative_to(Path.cwd()) and script.is_file():
            return script
    return None
