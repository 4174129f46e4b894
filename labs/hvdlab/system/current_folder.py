"""Find out whether the folder in which a command starts still exists. Standard library only."""

from __future__ import annotations  # the doctor reads this with an old Python, too

import os
import shlex


def why_gone() -> str:
    """Return why this process has no current folder, and what to do, in one sentence; "" if it has one.

    A shell stays in a folder that another program deletes. Programs that it starts there fail in many ways.
    """
    try:
        os.getcwd()
        return ""
    except OSError:
        name = os.environ.get("PWD", "")
    if os.path.isdir(name):
        again = f"cd {shlex.quote(name)}"
        return f"this folder was replaced by a new one of the same name: enter that with `{again}`."
    return f"this folder{f' ({name})' if name else ''} was deleted: enter one that exists, such as with `cd`."
