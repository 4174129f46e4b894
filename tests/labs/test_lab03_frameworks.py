"""Lab 3 runs from its first to its last cell with each framework."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).parents[2] / "labs" / "03_stochastic_gradient_descent.py"


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["keras", "torch"])
def test_the_lab_runs_with_this_framework(framework, tmp_path):
    pytest.importorskip(framework, reason="needs the frameworks: run `make setup`")
    text, count = re.subn(
        r"^FRAMEWORK = .*$", f'FRAMEWORK = "{framework}"', LAB.read_text(), flags=re.M
    )
    assert count == 1
    lab = tmp_path / LAB.name
    lab.write_text(text, encoding="utf-8")
    own = {"LAB_QUICK": "1", "LAB_WORK": str(tmp_path / "work"), "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, lab], env=os.environ | own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Right: ") == 8 + 7  # exercises and questions
