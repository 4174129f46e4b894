"""The measurement programs start. (They take too long for a complete run in a test.)"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
MEASUREMENTS = sorted(set(FOLDER.glob("*.py")) - set(FOLDER.glob("test_*.py")))


@pytest.mark.parametrize("path", MEASUREMENTS, ids=lambda path: path.stem)
def test_the_command_in_each_docstring_starts(path):
    module = re.search(r"^    \S*python -m (\S+)", path.read_text(), re.M)[1]
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {path.name}")
