"""The learner's copies of the notebooks, with real git: after every update the learner's work is there."""

import os
import subprocess

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from hvdlab.course import learner_notebooks
from hvdlab.course.learner_notebooks import copy_solution, update

NAME = "02_lab.ipynb"
STUB, ANSWER = "def double(x):\n    raise NotImplementedError", "def double(x):\n    return 2 * x"


def course_notebook(*cells):
    """Return a notebook as notebooks/build.py makes it: numbered cells, no outputs."""
    notebook = new_notebook(cells=list(cells), metadata={"language_info": {"name": "python"}})
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:03d}"
    return notebook


def first_version():
    return course_notebook(
        new_markdown_cell("# Lab 2\n\nA line.\nAnother line."),
        new_code_cell(STUB),
        new_code_cell("print(double(2))"),
        new_markdown_cell("The end."),
    )


def second_version():
    """Return the notebook with a changed text, and with a new cell before those that learners run."""
    old = first_version().cells
    old[0].source = old[0].source.replace("Another line.", "A better line.")
    return course_notebook(old[0], new_markdown_cell("A new cell."), *old[1:])


def conflicting_version():
    """Return the notebook with another stub, where the learner has written an answer."""
    old = first_version().cells
    old[1].source = "def double(x):\n    raise NotImplementedError('twice x')"
    return course_notebook(*old)


@pytest.fixture
def course(tmp_path):
    folder = tmp_path / "course/notebooks"
    (folder / "solutions").mkdir(parents=True)
    nbformat.write(first_version(), folder / NAME)
    nbformat.write(course_notebook(new_code_cell(ANSWER)), folder / "solutions" / NAME)
    return folder


@pytest.fixture
def work(course):
    return course / "work"


def solve(path):
    """Solve the exercise and run all cells, as JupyterLab saves it."""
    notebook = nbformat.read(path, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    code[0].source = ANSWER
    for number, cell in enumerate(code, 1):
        cell.execution_count = number
    code[1].outputs = [new_output("stream", text="4\n")]
    notebook.cells.append(new_code_cell("mine = 1"))
    nbformat.write(notebook, path)


def content(path):
    return [(cell.cell_type, cell.source) for cell in nbformat.read(path, 4).cells]


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_copies_without_solutions_have_the_metadata_of_this_kernel(course, work):
    assert update(course, work) == []
    assert sorted(path.name for path in work.rglob("*.ipynb")) == [NAME, NAME]  # and .course/
    notebook = nbformat.read(work / NAME, 4)
    assert notebook.cells == first_version().cells
    assert notebook.metadata.language_info == IPythonKernel.language_info
    assert notebook.metadata.kernelspec.name == "hvdlab"
    saved = nbformat.writes(notebook) + "\n"  # as Jupyter's server does
    assert (work / NAME).read_text() == saved
    before = everything(work)
    assert update(course, work) == [] and everything(work) == before


def test_a_copy_that_the_learner_has_not_changed_becomes_the_new_version(course, work):
    update(course, work)
    nbformat.write(second_version(), course / NAME)
    assert update(course, work) == []
    assert nbformat.read(work / NAME, 4).cells == second_version().cells


def test_a_deleted_copy_comes_back(course, work):
    update(course, work)
    solve(work / NAME)
    (work / NAME).unlink()
    update(course, work)
    assert nbformat.read(work / NAME, 4).cells == first_version().cells


def test_changes_of_both_sides_are_merged(course, work):
    update(course, work)
    solve(work / NAME)
    nbformat.write(second_version(), course / NAME)
    assert update(course, work) == [f"{work / NAME} has the changes of the course, and yours."]
    merged = nbformat.read(work / NAME, 4)
    nbformat.validate(merged)
    assert [cell.source for cell in merged.cells] == [
        "# Lab 2\n\nA line.\nA better line.",
        "A new cell.",
        ANSWER,
        "print(double(2))",
        "The end.",
        "mine = 1",
    ]
    assert merged.cells[3].outputs[0].text == "4\n" and merged.cells[3].execution_count == 2
    assert [path.name for path in work.glob("*.ipynb")] == [NAME]


def test_in_a_conflict_the_file_of_the_learner_stays(course, work):
    update(course, work)
    solve(work / NAME)
    mine = (work / NAME).read_bytes()
    nbformat.write(conflicting_version(), course / NAME)
    (said,) = update(course, work)
    assert "because you and the course have changed the same lines" in said
    assert str(work / "02_lab_new.ipynb") in said
    assert (work / NAME).read_bytes() == mine
    assert nbformat.read(work / "02_lab_new.ipynb", 4).cells == conflicting_version().cells

    before = everything(work)
    assert update(course, work) == [] and everything(work) == before  # says it once
    (work / "02_lab_new.ipynb").write_text("the learner's, too")
    newer = conflicting_version()
    newer.cells[1].source = "def twice(x):\n    raise NotImplementedError('twice x')"
    nbformat.write(newer, course / NAME)
    (said,) = update(course, work)
    assert str(work / "02_lab_new1.ipynb") in said
    assert (work / NAME).read_bytes() == mine
    assert (work / "02_lab_new.ipynb").read_text() == "the learner's, too"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": 7}', '{"cells": [3]}', "\x00\xff"])
def test_a_file_that_is_no_notebook_stays(course, work, text):
    update(course, work)
    (work / NAME).write_bytes(text.encode("latin-1"))
    nbformat.write(second_version(), course / NAME)
    (said,) = update(course, work)
    assert "stays as it is, because it is not a notebook" in said
    assert (work / NAME).read_bytes() == text.encode("latin-1")
    assert content(work / "02_lab_new.ipynb") == content(course / NAME)


def test_a_file_of_the_same_name_that_was_never_copied_stays(course, work):
    work.mkdir()
    (work / NAME).write_text("the learner's")
    (said,) = update(course, work)
    assert "it was not copied from the course" in said
    assert (work / NAME).read_text() == "the learner's"


def test_without_git_the_file_of_the_learner_stays(course, work, monkeypatch, tmp_path):
    update(course, work)
    solve(work / NAME)
    mine = (work / NAME).read_bytes()
    nbformat.write(second_version(), course / NAME)
    monkeypatch.setenv("PATH", str(tmp_path))
    (said,) = update(course, work)
    assert "there is no git on this machine" in said
    assert (work / NAME).read_bytes() == mine


@pytest.mark.parametrize("version", [second_version, conflicting_version])
@pytest.mark.parametrize("number", range(3))
def test_an_update_that_is_interrupted_loses_nothing(course, work, version, number, monkeypatch):
    update(course, work)
    solve(work / NAME)
    nbformat.write(version(), course / NAME)
    replace, calls = os.replace, []

    def fail(*arguments):
        calls.append(arguments)
        if len(calls) > number:
            raise OSError(28, "No space left on device")
        replace(*arguments)

    monkeypatch.setattr(os, "replace", fail)
    try:
        update(course, work)
    except OSError:
        assert number < 2  # two files are written
    assert ("code", ANSWER) in content(work / NAME)
    monkeypatch.setattr(os, "replace", replace)
    update(course, work)
    assert ("code", ANSWER) in content(work / NAME)
    assert ("code", "mine = 1") in content(work / NAME)
    new = ("markdown", "A new cell.")
    assert (new in content(work / NAME)) == (version is second_version)
    assert content(work / NAME).count(new) <= 1


def git(folder, *arguments):
    names = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | names, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def clone(course):
    """Return the folder of the course in a git repository that ignores the learner's folder."""
    top = course.parent
    nbformat.write(course_notebook(new_markdown_cell("Other")), course / "01_other.ipynb")
    (top / ".gitignore").write_text("notebooks/work/\n")
    git(top, "init", "-q")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "Add the course")
    return top


def test_work_in_the_files_of_the_course_moves_to_the_copies(clone, course, work):
    solve(course / NAME)
    mine = (course / NAME).read_bytes()
    assert update(course, work) == [f"Your work in {course / NAME} is now in {work / NAME}."]
    assert (work / NAME).read_bytes() == mine
    assert git(clone, "status", "--porcelain") == ""  # so that `git pull` does not conflict
    assert content(work / "01_other.ipynb") == [("markdown", "Other")]

    nbformat.write(second_version(), course / NAME)
    git(clone, "commit", "-q", "-a", "-m", "Add a cell")
    update(course, work)
    assert ("code", ANSWER) in content(work / NAME)
    assert ("markdown", "A new cell.") in content(work / NAME)


def test_a_later_change_of_the_files_of_the_course_is_not_moved(clone, course, work):
    """It is that of an author, who has run notebooks/build.py."""
    update(course, work)
    nbformat.write(second_version(), course / NAME)
    assert update(course, work) == []
    assert content(course / NAME) == content(work / NAME) == content_of(second_version())


def content_of(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_solutions_are_copied_only_when_asked_for_and_once(course, work):
    (said,) = copy_solution(course, work, 2)
    copied = work / "solutions" / NAME
    assert str(copied) in said and content(copied) == [("code", ANSWER)]
    copied.write_text("changed by the learner")
    copy_solution(course, work, 2)
    assert copied.read_text() == "changed by the learner"
    with pytest.raises(ValueError, match="lab 3 has no notebook with solutions"):
        copy_solution(course, work, 3)


@pytest.mark.parametrize("number", ["3", "-1"])
def test_the_command_names_a_lab_without_solutions(course, work, number, monkeypatch, capsys):
    from hvdlab import cli
    from hvdlab.course import experiment

    monkeypatch.setattr(learner_notebooks, "COURSE", course)
    monkeypatch.setattr(experiment, "WORK", work)
    assert cli.main(["notebooks", "--solution", number]) == 1
    said = capsys.readouterr()
    assert said.out == "" and f"lab {number} has no notebook with solutions" in said.err
    assert cli.main(["notebooks"]) == 0
    assert (work / NAME).exists() and capsys.readouterr().out == ""
