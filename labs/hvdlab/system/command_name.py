"""Name the command `hvdlab` as the user must type it on this machine, for messages."""

import shlex
import shutil
import sys
from pathlib import Path


def hvdlab() -> str:
    """Return `hvdlab` if the shell finds it, else its path, because `make lab` activates no environment."""
    program = Path(sys.executable).parent / "hvdlab"
    return (
        shlex.quote(str(program)) if program.exists() and not shutil.which("hvdlab") else "hvdlab"
    )
