"""The notebooks match their sources, and the builder refuses a source that it cannot build."""

import base64
import importlib.util
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "notebooks/build.py"
SOURCE = """\
# %% [markdown]
# # Lab 7: a title

# %%
def double(x):
    # BEGIN SOLUTION: return twice "x"
    return 2 * x
    # END SOLUTION


after = 1

# %% tags=["solution"]
print("seen in the solution only")
"""


@pytest.fixture
def builder(tmp_path, monkeypatch):
    """Return the module notebooks/build.py, with its own folders."""
    spec = importlib.util.spec_from_file_location("build", BUILDER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("labs", "notebooks"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(module, "LABS", tmp_path / "labs")
    monkeypatch.setattr(module, "NOTEBOOKS", tmp_path / "notebooks")
    return module


def run(module, monkeypatch, *arguments) -> int:
    monkeypatch.setattr(sys, "argv", ["build.py", *arguments])
    return module.main()


@pytest.mark.parametrize(
    "locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_the_committed_notebooks_are_up_to_date(locale):
    done = subprocess.run(
        [sys.executable, BUILDER, "--check"],
        env={**os.environ, **locale},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


LIST_ITEM = re.compile(r" *([-+*]|\d+[.)]) ")


@pytest.mark.parametrize("path", sorted(ROOT.glob("labs/[0-9]*.py")), ids=lambda path: path.stem)
def test_no_line_of_a_sentence_begins_like_a_list_item(path):
    """JupyterLab or the site would show it as a list, for example a line that begins with "2. Then"."""
    for cell in path.read_text(encoding="utf-8").split("# %%")[1:]:
        head, *lines = cell.rstrip().split("\n")
        texts = [line.removeprefix("#").removeprefix(" ") for line in lines]
        texts = re.sub(r"^ *```.*?^ *```$", "", "\n".join(texts), flags=re.M | re.S).split("\n")
        in_list = False
        for before, line in pairwise(["", *texts] if "[markdown]" in head else []):
            starts = bool(LIST_ITEM.match(line))
            assert in_list or not starts or not before.strip(), f"{before}\n{line}"
            in_list = starts or (in_list and bool(line.strip()))


# Without the first, the start page, which has no solutions.
LABS = sorted(ROOT.glob("labs/[0-9]*.py"))[1:]


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_every_line_of_the_text_arrives_in_the_notebook(path):
    written = []
    for cell in path.read_text(encoding="utf-8").split("# %%")[1:]:
        head, *lines = cell.rstrip().split("\n")
        if "[markdown]" in head:
            written += [line.removeprefix("# ") for line in lines if line.strip("# ")]
    cells = nbformat.read(ROOT / "notebooks/solutions" / f"{path.stem}.ipynb", 4).cells
    shown = [line for cell in cells for line in cell.source.split("\n")]
    assert [line for line in written if line not in shown and "](pictures/" not in line] == []


def test_learners_get_a_stub_and_solutions_are_complete(builder, monkeypatch):
    (builder.LABS / "07_title.py").write_text(SOURCE)
    assert run(builder, monkeypatch) == 0
    learner = nbformat.read(builder.NOTEBOOKS / "07_title.ipynb", 4)
    solution = nbformat.read(builder.NOTEBOOKS / "solutions/07_title.ipynb", 4)

    assert "labs/07_title.py" not in nbformat.writes(learner)  # the file with the solutions
    assert "generated from `labs/07_title.py`: edit that file" in solution.cells[0].source
    assert learner.cells[1].source == (
        "def double(x):\n"
        "    raise NotImplementedError(\"Lab 7, exercise 1: return twice 'x'\")\n\n\nafter = 1"
    )
    # The solutions must not overwrite files of a learner.
    assert '"LAB_WORK", "notebooks/work/solutions"' in solution.cells[1].source
    assert solution.cells[2].source == "def double(x):\n    return 2 * x\n\n\nafter = 1"
    assert [len(learner.cells), len(solution.cells)] == [2, 4]
    for notebook in (learner, solution):
        assert notebook.metadata.kernelspec.name == "hvdlab"
        assert [cell.id for cell in notebook.cells][:2] == ["cell-000", "cell-001"]
        assert not any(cell.get("outputs") for cell in notebook.cells)


HINT = "# <details><summary>Hint 1</summary>Add x.</details>"
HINTS = f"""\
# %% [markdown]
# ## Exercise 1: Double
#
# **What:** twice x.
#
{HINT}
# after the hint

# %%
def double(x):
    # BEGIN SOLUTION: return twice x
    return 2 * x
    # END SOLUTION

# %%
exercises.check_double(double)

# %% [markdown]
# ## Exercise 2: Edit
#
{HINT}

# %%
# BEGIN SOLUTION: edit the script
edit()
# END SOLUTION

# %%
exercises.check_edit(script)
"""


def test_hints_are_left_out_of_the_learners_text_and_a_comment_opens_them(builder, monkeypatch):
    (builder.LABS / "07_title.py").write_text(HINTS)
    assert run(builder, monkeypatch) == 0
    learner = nbformat.read(builder.NOTEBOOKS / "07_title.ipynb", 4)
    solution = nbformat.read(builder.NOTEBOOKS / "solutions/07_title.ipynb", 4)
    text, stub, check, second, edit, check_edit = (cell.source for cell in learner.cells)
    assert text == "## Exercise 1: Double\n\n**What:** twice x.\nafter the hint"
    comment = "# hint()  # To open the next hint, remove the first # and run this cell.\n\n"
    assert stub.startswith(comment + "def double(x):\n    raise NotImplementedError")
    assert check == "exercises.check_double(double)"
    assert second == "## Exercise 2: Edit"
    assert edit.startswith("raise NotImplementedError")  # the learner may delete all of it
    assert check_edit == comment + "exercises.check_edit(script)"
    solved = "\n".join(cell.source for cell in solution.cells)
    assert solved.count("Hint 1</summary>Add x.") == 2 and "hint()" not in solved


def test_an_optional_notebook_continues_the_numbers_of_its_lab(builder, monkeypatch):
    for name in ("07_title", "07_more_things"):
        (builder.LABS / f"{name}.py").write_text(SOURCE)
    assert run(builder, monkeypatch) == 0
    stubs = nbformat.read(builder.NOTEBOOKS / "07_more_things.ipynb", 4).cells[1].source
    assert "Lab 7, exercise 2: return twice" in stubs
    assert [path.stem for path in builder.sources()][:2] == ["07_title", "07_more_things"]


def test_the_build_is_deterministic(builder, monkeypatch):
    (builder.LABS / "07_title.py").write_text(SOURCE)
    run(builder, monkeypatch)
    first = (builder.NOTEBOOKS / "07_title.ipynb").read_bytes()
    run(builder, monkeypatch)
    assert (builder.NOTEBOOKS / "07_title.ipynb").read_bytes() == first


def test_check_finds_edited_missing_and_outdated_notebooks(builder, monkeypatch, capsys):
    source = builder.LABS / "07_title.py"
    source.write_text(SOURCE)
    run(builder, monkeypatch)
    assert run(builder, monkeypatch, "--check") == 0
    source.write_text(SOURCE.replace("after = 1", "after = 2"))
    (builder.NOTEBOOKS / "08_gone.ipynb").write_text("{}")
    capsys.readouterr()
    assert run(builder, monkeypatch, "--check") == 1
    said = capsys.readouterr().err
    assert "notebooks/07_title.ipynb is not what its source gives" in said
    assert "notebooks/08_gone.ipynb has no source" in said
    assert run(builder, monkeypatch) == 0
    assert run(builder, monkeypatch, "--check") == 0
    assert not (builder.NOTEBOOKS / "08_gone.ipynb").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    # END SOLUTION\n", "", "# END SOLUTION is missing"),
        ("    # END SOLUTION\n", "    # BEGIN SOLUTION: again\n", "must come in pairs"),
        ('    # BEGIN SOLUTION: return twice "x"\n', "", "must come in pairs"),
        ("# BEGIN SOLUTION: return", "# BEGIN SOLUTION return", "must come in pairs"),
    ],
)
def test_refuses_unpaired_solution_marks(builder, monkeypatch, capsys, old, new, said):
    (builder.LABS / "07_title.py").write_text(SOURCE.replace(old, new))
    assert run(builder, monkeypatch) == 1
    message = capsys.readouterr().err
    assert said in message and "07_title.py, cell 1" in message and "return 2 * x" in message


PNG = b"\x89PNG and so on"
SHOWN = """\
# %% [markdown]
# # Lab 7: a title
# ![A ring](pictures/ring.svg) and [a page](pictures/README.md)

# %% tags=["folded"]
draw()

# %%
train()
"""


def test_a_picture_is_embedded_in_the_cell_that_shows_it(builder, monkeypatch):
    (builder.LABS / "pictures").mkdir()
    (builder.LABS / "pictures/ring.png").write_bytes(PNG)
    (builder.LABS / "07_title.py").write_text(SHOWN)
    assert run(builder, monkeypatch) == 0
    notebook = nbformat.read(builder.NOTEBOOKS / "07_title.ipynb", 4)
    nbformat.validate(notebook)
    cell = notebook.cells[0]
    assert "![A ring](attachment:ring.png) and [a page](pictures/README.md)" in cell.source
    ((name, bundle),) = cell.attachments.items()
    assert name == "ring.png"
    assert base64.b64decode(bundle["image/png"]) == PNG


def test_refuses_a_picture_that_does_not_exist(builder, monkeypatch, capsys):
    (builder.LABS / "07_title.py").write_text(SHOWN)
    assert run(builder, monkeypatch) == 1
    said = capsys.readouterr().err
    assert said == "build: 07_title.py shows ring, and there is no labs/pictures/ring.png\n"


def test_only_a_folded_cell_hides_its_source(builder, monkeypatch):
    (builder.LABS / "07_title.py").write_text(SHOWN.replace("![A ring](pictures/ring.svg)", ""))
    assert run(builder, monkeypatch) == 0
    notebook = nbformat.read(builder.NOTEBOOKS / "07_title.ipynb", 4)
    hidden = [cell.metadata.get("jupyter", {}).get("source_hidden") for cell in notebook.cells]
    assert hidden == [None, True, None]


def test_a_page_becomes_a_notebook_of_text(builder, monkeypatch):
    (builder.LABS / "glossary.md").write_text(
        "# Glossary\n\n| term | meaning |\n|---|---|\n| rank | one |\n"
    )
    (builder.LABS / "README.md").write_text("# Not a page\n")
    assert run(builder, monkeypatch) == 0
    assert [path.name for path in builder.NOTEBOOKS.glob("*.ipynb")] == ["glossary.ipynb"]
    notebook = nbformat.read(builder.NOTEBOOKS / "glossary.ipynb", 4)
    assert {cell.cell_type for cell in notebook.cells} == {"markdown"}
    assert "| rank | one |" in notebook.cells[0].source
