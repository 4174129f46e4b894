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
    """The result is kept, or the lab uses the learner's value. A decision has no result."""
    text = source.read_text()
    nodes = list(ast.walk(ast.parse(text)))
    called = [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]
    asked = [node for name, node in called if name == "workbook.predict"]
    results = {node.args[0].value: node for name, node in called if name == "workbook.result"}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = {node.id: node.lineno for node in names if isinstance(node.ctx, ast.Load)}
    kept = {
        id(node.value): ast.unparse(node.targets[0])
        for node in nodes
        if isinstance(node, ast.Assign)
    }
    for call in asked:
        number = call.args[0].value
        later = results[number].lineno if number in results else used.get(kept.get(id(call)), 0)
        assert later > call.lineno or f"# Decision {number}: " in text, f"prediction {number}"
    assert set(results) <= {call.args[0].value for call in asked}


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
