"""Every lab runs in a quick run: as a plain script, and for the learner up to the first exercise."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "labs").glob("[0-9][0-9]_*.py"))
LABS = [path for path in SOURCES if not path.name.startswith("00_")]
# The same cells run as solution notebooks anyway. Therefore most labs are tested as plain scripts and up to
# the first exercise only in a thorough run.
SCRIPTS = [
    pytest.param(path, marks=[pytest.mark.thorough] if path.name >= "02" else [])
    for path in SOURCES
]
LEARNERS = [
    pytest.param(path, marks=[] if path.name.startswith("01") else [pytest.mark.thorough])
    for path in LABS
]


def name(path):
    return path.stem


@pytest.mark.parametrize("source", LABS, ids=name)
def test_every_prediction_is_shown_with_its_result(source):
    names = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Name)]
    uses = {}  # prediction -> its lines in order, each of them an assignment or a use
    for node in sorted(names, key=lambda node: (node.lineno, isinstance(node.ctx, ast.Store))):
        if "prediction" in node.id:
            uses.setdefault(node.id, []).append(node)
    for places in uses.values():
        for this, after in zip(places, [*places[1:], None], strict=True):
            made = isinstance(this.ctx, ast.Store)
            assert not made or after and isinstance(after.ctx, ast.Load), f"line {this.lineno}"


@pytest.fixture
def quick(monkeypatch):
    """Set the environment of a quick run without a display."""
    monkeypatch.setenv("LAB_QUICK", "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.mark.notebook
@pytest.mark.data
@pytest.mark.parametrize("source", SCRIPTS, ids=name)
def test_each_lab_runs_as_a_script(source, quick, tmp_path):
    done = subprocess.run(
        [sys.executable, source],
        env={**os.environ, "MPLBACKEND": "agg"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.notebook
@pytest.mark.data
@pytest.mark.thorough
@pytest.mark.parametrize("number", ["06", "07"])
def test_a_lab_with_a_framework_switch_runs_with_keras(number, quick, monkeypatch, tmp_path):
    """Their quick runs use PyTorch otherwise."""
    monkeypatch.setenv("LAB_FRAMEWORK", "keras")
    for source in SOURCES:
        if source.name.startswith(number):
            test_each_lab_runs_as_a_script(source, None, tmp_path)


@pytest.mark.notebook
@pytest.mark.data
@pytest.mark.parametrize("source", LEARNERS, ids=name)
def test_an_unsolved_notebook_stops_at_the_first_exercise(source, quick):
    notebook = nbformat.read(ROOT / "notebooks" / f"{source.stem}.ipynb", 4)
    client = NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": ROOT / "notebooks"}}
    )
    with pytest.raises(CellExecutionError) as stopped:
        client.execute()
    assert stopped.value.ename == "NotImplementedError"
    number = r"\d+" if "_more_" in source.name else "1"
    assert re.match(f"Lab {int(source.name[:2])}, exercise {number}: ", stopped.value.evalue)
