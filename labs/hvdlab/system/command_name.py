"""How the command `hvdlab` is typed on this machine: for sentences that say what to type."""

import shlex
import shutil
import sys
from pathlib import Path


def hvdlab() -> str:
    """`hvdlab` where that is found, else with its folder: `make lab` activates no environment."""
    program = Path(sys.executable).parent / "hvdlab"
    return (
        shlex.quote(str(program)) if program.exists() and not shutil.which("hvdlab") else "hvdlab"
    )
