"""Read the source of the script that a learner edits in labs 5, 8 and 11, without running it.

Where a script can run, its run decides whether it is right, and the source only explains a wrong run.
"""

import ast
from pathlib import Path

from hvdlab.exercises import NotYet
from hvdlab.script_analysis.script import Script, Unreadable


def read(path: str | Path) -> Script:
    """Return the learner's script.

    Raises:
        NotYet: The script is not there, or Python cannot read it.
    """
    path = Path(path)
    try:
        return Script(path.read_bytes())
    except FileNotFoundError:
        raise NotYet(f"{path.name} is not there: run the cell that copies it.") from None
    except Unreadable as error:
        raise NotYet(f"Python cannot read {path.name}: {error}.") from None


def called(script: Script) -> set[str]:
    """Return the names of all calls of a script, as they are written there: "hvd.init"."""
    return {ast.unparse(call.func) for call in script.calls}
