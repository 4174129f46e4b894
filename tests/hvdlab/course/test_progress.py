"""`hvdlab progress` counts per lab what a learner has solved, predicted and answered."""

import subprocess
import sys

import pytest

from hvdlab.course import answers_file, lab_source, progress
from hvdlab.course.answers_file import (
    AnswersFile,
    OpenedHint,
    Prediction,
    QuizAnswer,
    Result,
    SolvedExercise,
)

SOURCE = """\
# %% [markdown]
# # Lab 7: Some title

# %%
workbook = Workbook(7)
prediction = workbook.predict(1, None, reason=None)
other = workbook.predict(2, None, reason=None)

# %%
exercises.check_one(one)

# %% [markdown]
# ## Exercise 2: Cases
#
# **Level:** blank page.

# %%
exercises.check_case(1, diagnosis)
exercises.check_case(2, diagnosis)
exercises.check_case(2, again)

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="b")
"""
DONE = [
    SolvedExercise(7, "check_one", "t"),
    SolvedExercise(7, "check_one", "later"),
    SolvedExercise(7, "check_case 2", "t"),
    SolvedExercise(7, "check_of_an_older_lab", "t"),
    SolvedExercise(8, "check_one", "t"),
    Prediction(7, 1, 5, "", "t"),
    Prediction(7, 2, 5, "because", "t"),
    Prediction(7, 2, 6, "", "later"),
    Result(7, 1, 6.5, "t"),
    Result(7, 1, 6, "later"),  # 5 is within a quarter of it
    Result(7, 2, "ring", "t"),
    Result(7, 3, 6, "t"),  # no prediction was made
    QuizAnswer(7, 1, "a", False, "t"),
    QuizAnswer(7, 1, "b", True, "t"),
    QuizAnswer(7, 1, "c", False, "later"),
    OpenedHint(7, "lab07.one", 1, "t"),
    OpenedHint(7, "lab07.one", 2, "t"),
    OpenedHint(7, "lab07.one", 2, "later"),
    OpenedHint(7, "lab07.of_an_older_lab", 1, "t"),
    OpenedHint(8, "lab08.one", 1, "t"),
]


@pytest.mark.parametrize(
    ("prediction", "result", "near"),
    [
        (75, 100, True),
        (100, 75, True),
        (74, 100, False),
        (-100, 100, False),
        (0, 0, True),
        ("Ring", "ring", True),
        ("naive", "ring", False),
        (1, "1.0", False),
    ],
)
def test_a_prediction_is_near_within_a_quarter_or_with_the_same_word(prediction, result, near):
    assert progress.is_near(prediction, result) is near


@pytest.fixture
def lab(tmp_path):
    path = tmp_path / "07_title.py"
    path.write_text(SOURCE)
    (tmp_path / "00_start_here.py").write_text("# # Start here\n")
    (tmp_path / "a_script.py").write_text("1")
    (found,) = lab_source.labs(tmp_path)
    return found


def test_a_lab_is_read_from_its_source(lab):
    assert (lab.number, lab.title) == (7, "Some title")
    assert lab.exercises == ("lab07.one", "lab07.case 1", "lab07.case 2")
    assert (lab.predictions, lab.questions) == ({1, 2}, {1})


def test_optional_notebooks_count_as_parts_of_their_lab(lab):
    more = lab.path.with_name("07_more_things.py")
    more.write_text("exercises.check_two(two)\nworkbook.predict(3, None)\n")
    (found,) = lab_source.labs(lab.path.parent)
    assert (found.path, found.title, found.optional) == (lab.path, "Some title", (more,))
    assert found.exercises == (*lab.exercises, "lab07.two")
    assert found.predictions == {1, 2, 3}


def test_each_thing_counts_once_and_stays_done(lab):
    (found,) = progress.progress(DONE, [lab])
    assert (len(found.solved), found.reasoned, found.answered, found.right) == (2, 1, 1, 1)
    assert (found.hints, found.near) == (2, 1)
    assert progress.by_level([found]) == (
        "Solved exercises by level: complete 1 of 1, choose and justify 0 of 0, blank page 1 of 2."
    )
    (found,) = progress.progress([], [lab])
    assert (len(found.solved), found.reasoned, found.answered, found.right) == (0, 0, 0, 0)
    assert found.hints == 0


def test_the_table_has_a_row_per_lab(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    file = AnswersFile(tmp_path / "answers.json")
    file.add(SolvedExercise(2, "check_gradient", "t"))
    file.add(OpenedHint(2, "lab02.gradient", 1, "t"))
    progress.show(file)
    said = capsys.readouterr().out
    rows = [line for line in said.splitlines() if " of " in line and "│" in line]
    assert len(rows) == 1 + len(lab_source.labs()) >= 15  # the first: entry test and bridge
    (row,) = [row for row in rows if "2 Gradient descent" in row]
    (lab,) = [lab for lab in lab_source.labs() if lab.number == 2]
    assert f"1 of {len(lab.exercises)}" in row
    assert row.split("│")[-2].strip() == "1"  # a hint
    assert "Solved exercises by level: complete 1 of " in said


def test_no_file_and_a_broken_file_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(answers_file, "PATH", tmp_path / "answers.json")
    assert progress.main(None) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"There is nothing in {tmp_path}/answers.json yet. Solve an exercise")
    answers_file.PATH.write_text("{")
    assert progress.main(None) == 1
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and "Move it away" in err


def test_the_command_imports_no_framework():
    code = (
        "import sys; from hvdlab.cli import main; main(['progress']); "
        "sys.exit(bool({'torch', 'tensorflow', 'keras', 'mpi4py'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
