"""An exercise that is not solved shows one line in a notebook: in its own cell, and in its check.

The tests run the cells of the learners' notebooks that hold a stub, and then every check that the notebook
calls. Other cells do not run, so a check gets None where it needs their results.
"""

import ast
import re
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell

from hvdlab.course import notebook
from hvdlab.system import tensorflow_log

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

LABS = Path(__file__).parents[2] / "labs"
NOTEBOOKS = sorted((LABS.parent / "notebooks").glob("[0-9]*.ipynb"))[1:]  # without the start page
STUB = re.compile(r"raise NotImplementedError\(.*\)")
STUB_ITSELF = r"\g<0>"


@pytest.fixture
def shell(monkeypatch):
    """Return a shell as notebooks have it, in which a lab has been begun; `shown` lists its errors."""
    shell = InteractiveShell(user_ns={})
    shell.shown = []
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell)
    monkeypatch.setattr(tensorflow_log, "quiet_notebook", lambda: None)
    monkeypatch.setattr(
        InteractiveShell,
        "_showtraceback",
        lambda self, kind, error, lines: shell.shown.append(lines),
    )
    notebook.prepare()
    return shell


def sources(path) -> list[str]:
    """Return the code cells of a notebook."""
    return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def statements(path) -> list[ast.stmt]:
    return [statement for source in sources(path) for statement in ast.parse(source).body]


def import_all(shell, path):
    for statement in statements(path):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            assert shell.run_cell(ast.unparse(statement)).success


def checks(path) -> list[ast.Call]:
    """Return the calls of checks in a notebook."""
    calls = [
        node for each in statements(path) for node in ast.walk(each) if isinstance(node, ast.Call)
    ]
    return [
        call for call in calls if ast.unparse(call.func).rpartition(".")[2].startswith("check_")
    ]


def run_check(shell, call):
    """Run a check. An argument that is not there, because its cell did not run, is None."""
    for number, argument in enumerate(call.args):
        try:
            value = eval(ast.unparse(argument), shell.user_ns)
        except Exception:
            value = None
        shell.user_ns[f"_{number}"] = value
        call.args[number] = ast.Name(f"_{number}")
    shell.run_cell(ast.unparse(call))


THOROUGH = "04", "05", "11", "12", "13", "14"  # their checks start ranks again and again
KINDS = {"raises": STUB_ITSELF, "passes": "pass", "dots": "answer = ..."}  # what a stub does
CASES = [
    pytest.param(
        path, kind, id=f"{path.stem}-{kind}",
        marks=[pytest.mark.thorough] if path.name.startswith(THOROUGH) else [],
    )
    for path in NOTEBOOKS
    for kind in KINDS
]  # fmt: skip


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(("path", "kind"), CASES)
def test_an_unsolved_exercise_shows_one_line(path, kind, shell, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(LABS)
    import_all(shell, path)
    script = tmp_path / "script.py"  # the learner's copy, here without any training
    script.write_text("print('nothing is done yet')\n")
    shell.user_ns["SCRIPT"] = script
    stubs = [source for source in sources(path) if STUB.search(source)]
    for source in stubs:
        shell.run_cell(STUB.sub(KINDS[kind], source))
    calls = checks(path)
    for call in calls:
        run_check(shell, call)
    assert len(shell.shown) >= len(calls) > 0, "a check accepted a stub"
    wrong = [lines for lines in shell.shown if not is_one_line(lines)]
    assert wrong == []


def is_one_line(lines) -> bool:
    return len(lines) == 1 and lines[0].startswith("Not yet: ") and "\n" not in lines[0]


def test_a_cell_that_needs_the_result_of_a_stub_shows_one_line(shell):
    stub = "Lab 7, exercise 3: return the learning rates"
    shell.run_cell(f"def f():\n    raise NotImplementedError('{stub}')")
    shell.run_cell("few = 2\nlengths = f()")
    shell.run_cell("table = lengths")
    shell.run_cell("print(table)")
    assert shell.shown == [
        [f"Not yet: {stub}"],
        [f"Not yet: this cell needs `lengths` of a cell above. {stub}"],
        [f"Not yet: this cell needs `table` of a cell above. {stub}"],
    ]
    shell.run_cell("few, unknown")
    assert "name 'unknown' is not defined" in "\n".join(shell.shown[-1])


def test_another_error_keeps_its_traceback(shell):
    shell.run_cell("def f():\n    raise NotImplementedError('a mode of convolution')\n\nf()")
    shell.run_cell("1 / 0")
    for lines, name in zip(shell.shown, ["NotImplementedError", "ZeroDivisionError"], strict=True):
        text = "\n".join(lines)
        assert "Traceback" in text and name in text and "Not yet" not in text
