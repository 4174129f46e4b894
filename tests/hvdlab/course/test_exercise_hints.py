"""`hint()` finds the exercise of the cell that calls it, and opens its hints one by one."""

import html
import re
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

from hvdlab.course import exercise_hints, experiment, lab_source
from hvdlab.course.answers_file import AnswersFile, OpenedHint
from hvdlab.course.workbook import Workbook

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
LEARNERS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))[1:]  # without the start page
BLOCK = re.compile(r"<details><summary>(.*?)</summary>(.*?)</details>", re.DOTALL)
SOLUTION = re.compile(r"# BEGIN SOLUTION.*?\n(.*?)# END SOLUTION", re.DOTALL)
each_notebook = pytest.mark.parametrize("path", LEARNERS, ids=lambda path: path.stem)


@pytest.fixture
def shell(monkeypatch):
    """Return a shell as notebooks have it. It does not print the errors of cells."""
    shell = InteractiveShell.instance()
    monkeypatch.setattr(InteractiveShell, "_showtraceback", lambda self, kind, error, lines: None)
    yield shell
    InteractiveShell.clear_instance()


def begin(shell, lab: int, folder: Path) -> Workbook:
    """Give a shell the function `hint` of a lab, as the first cell of the lab does."""
    book = Workbook(lab, AnswersFile(folder / "answers.json"))
    shell.user_ns["hint"] = book.hint
    return book


def opened(book: Workbook) -> list[tuple[str, int]]:
    kept = (one for one in book._file.entries() if isinstance(one, OpenedHint))
    return [(one.exercise, one.number) for one in kept]


def cells(path: Path, kind: str) -> list[str]:
    return [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == kind]


def folded(path: Path) -> list[list[str]]:
    """Return the words of each hint of each exercise, as the notebook with the solutions folds them."""
    text = "\n".join(cells(path.parent / "solutions" / path.name, "markdown"))
    exercises = re.split(r"^##+ Exercise \d+.*$", text, flags=re.MULTILINE)[1:]
    hints = [[words(" ".join(block)) for block in BLOCK.findall(one)] for one in exercises]
    return [one for one in hints if one]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", html.unescape(re.sub(r"</?[a-z]+>", " ", text)))


def ids(path: Path) -> list[str]:
    """Return the ids of the exercises of a notebook, in their order."""
    return list(lab_source.read(experiment.LABS / f"{path.stem}.py").exercises)


@each_notebook
def test_the_cell_of_each_exercise_opens_its_own_hints(path, shell, tmp_path, capsys):
    book = begin(shell, int(path.name[:2]), tmp_path)
    callers = [one for one in cells(path, "code") if one.startswith(exercise_hints.CALL)]
    every = folded(path)
    assert len(callers) == len(every) > 0
    for source, hints in zip(callers, every, strict=True):
        for number in range(1, len(hints) + 2):
            shell.run_cell(source.removeprefix("# "))
            said = capsys.readouterr().out
            expected = [word for hint in hints[:number] for word in hint]
            assert words(said)[: len(expected)] == expected
            assert ("These are all hints" in said) == (number >= len(hints))
    order = list(dict.fromkeys(id for id, _ in opened(book)))
    assert len(opened(book)) == sum(map(len, every))
    assert len(order) == len(every) and order == [id for id in ids(path) if id in order]


@each_notebook
def test_a_hint_shows_no_line_of_a_solution_but_those_of_its_text(path):
    source = (experiment.LABS / f"{path.stem}.py").read_text(encoding="utf-8")
    texts = cells(path.parent / "solutions" / path.name, "markdown")
    text = " ".join(" ".join(block) for block in BLOCK.findall("\n".join(texts)))
    lines = {line.strip() for part in SOLUTION.findall(source) for line in part.splitlines()}
    exercises = exercise_hints.exercises(exercise_hints.cells(source), int(path.name[:2]))
    shown = " ".join(" ".join(hint) for one in exercises for hint in one.hints)
    assert [line for line in lines if line in shown and line not in text] == []
    assert len(shown.split()) == len(text.split())


@each_notebook
def test_the_text_of_the_learner_has_no_hint_and_no_empty_cell(path):
    texts = cells(path, "markdown")
    assert all(text.strip() for text in texts)
    assert not any("<details>" in text for text in texts)


def test_two_calls_in_a_cell_open_two_hints_and_a_new_kernel_continues(shell, tmp_path, capsys):
    begin(shell, 1, tmp_path)
    shell.run_cell("hint()\nhint()\n\ndef ring_seconds(size, links):\n    return 1")
    assert "**Hint 2**" in capsys.readouterr().out
    book = begin(shell, 1, tmp_path)
    shell.run_cell("%pwd\nhint()\ndef ring_seconds(size, links):\n    return 2")
    assert "**Hint 3**" in capsys.readouterr().out
    assert opened(book) == [("lab01.ring_seconds", number) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    "source", ["hint()", "hint()\ndef my_own():\n    pass", "f = lambda: hint()\nf()"]
)
def test_a_cell_of_no_exercise_gets_one_sentence(shell, tmp_path, capsys, source):
    book = begin(shell, 1, tmp_path)
    shell.run_cell(source)
    said = capsys.readouterr().out
    assert said.startswith("This cell belongs to no exercise of lab 1. Call hint() in the cell")
    assert len(said.splitlines()) == 1 and opened(book) == []


def test_an_exercise_without_hints_says_so(shell, tmp_path, capsys):
    begin(shell, 5, tmp_path)
    shell.run_cell('hint()\ntransfer.check_transfer(1, TRANSFER / "torch_loop.py")')
    assert capsys.readouterr().out == "This exercise has no hints.\n"


SCRIPT = """\
from hvdlab.course.workbook import Workbook

# %%
book = Workbook(4)
hint = book.hint

# %%
def combine(local_gradients, local_counts):
    return 1


hint()
hint()

# %%
def pass_right(comm, values):
    return values
"""


def test_a_script_prints_text_and_keeps_nothing(tmp_path, capsys, monkeypatch):
    path = tmp_path / "lab.py"
    path.write_text(SCRIPT)
    names = {}
    exec(compile(SCRIPT, str(path), "exec"), names)
    said = capsys.readouterr().out
    assert said.count("A gradient gets the weight") == 2 and said.count("a smaller case") == 1
    assert "<" not in said and "2/6 * 1.5 + 4/6 * 6.75 = 5" in said
    assert names["book"]._file is None


KERNEL = """\
from pathlib import Path
from hvdlab.course import answers_file
from hvdlab.course.workbook import Workbook

answers_file.PATH = Path("answers.json")
hint = Workbook(4).hint
"""


@pytest.mark.slow
def test_a_kernel_shows_markdown_and_keeps_the_hint(tmp_path, monkeypatch):
    monkeypatch.delenv("LAB_WORK", raising=False)
    (asking,) = [
        one
        for one in cells(NOTEBOOKS / "04_data_parallelism.ipynb", "code")
        if "def combine" in one
    ]
    sources = [KERNEL, asking.removeprefix("# ")]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", timeout=120, resources=place).execute()
    (output,) = notebook.cells[1].outputs
    assert "**Hint 1: the idea**\n\nA gradient gets the weight" in output.data["text/markdown"]
    file = AnswersFile(tmp_path / "answers.json")
    assert [(one.exercise, one.number) for one in file.entries()] == [("lab04.combine", 1)]
