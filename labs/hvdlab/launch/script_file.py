"""Check that a script is something that ranks can run."""

import json
import shlex
from pathlib import Path

from hvdlab.launch.local import LaunchError


def must_be_script(script: str | Path) -> None:
    """Check that a script is a file, and not a notebook.

    Args:
        script: the path that the user named.

    Raises:
        LaunchError: it is no file, or it is a notebook.
    """
    if not Path(script).is_file():
        raise LaunchError(f"{script} is not a file: name the Python script for the ranks to run.")
    if is_notebook(Path(script)):
        raise LaunchError(
            f"{script} is a notebook, but ranks run a Python file: write one with `jupyter nbconvert --to "
            f"script {shlex.quote(str(script))}`, and name that."
        )


def is_notebook(path: Path) -> bool:
    """Return whether a file is a notebook, whatever its name is."""
    if path.suffix.lower() == ".ipynb":
        return True
    try:
        text = path.read_bytes()
        return text.lstrip().startswith(b"{") and "nbformat" in json.loads(text)
    except (OSError, ValueError, RecursionError):
        return False
