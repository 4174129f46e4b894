"""What the panel of JupyterLab shows: every exercise of the labs, with a heading that its notebook has."""

import nbformat
import pytest

from hvdlab.course import experiment, lab_source
from hvdlab.course.answers_file import AnswersFile, QuizAnswer, SolvedExercise
from hvdlab.course.overview import next_exercise, overview

NOTEBOOKS = experiment.LABS.parent / "notebooks"


@pytest.fixture
def file(tmp_path):
    return AnswersFile(tmp_path / "answers.json")


def test_every_exercise_is_at_a_heading_of_its_notebook(file):
    labs = overview(file)["labs"]
    assert [lab["number"] for lab in labs] == list(range(1, 19))
    assert all(lab["minutes"] >= 60 and lab["exercises"] for lab in labs)
    lines = {
        path.name: {
            line.lstrip("# ")
            for cell in nbformat.read(path, 4).cells
            if cell.cell_type == "markdown"
            for line in cell.source.splitlines()
            if line.startswith("#")
        }
        for path in NOTEBOOKS.glob("*.ipynb")
    }
    exercises = [exercise for lab in labs for exercise in lab["exercises"]]
    assert len(exercises) >= 150
    assert [one for one in exercises if one["heading"] not in lines[one["notebook"]]] == []


def test_what_is_done_is_marked(file):
    before = overview(file)
    first = before["labs"][1]["exercises"][0]
    file.add(SolvedExercise(2, first["id"], "t"))
    file.add(QuizAnswer(2, 1, "c", True, "t"))
    after = overview(file)
    assert after["labs"][1]["exercises"][0] == first | {"solved": True}
    assert [lab["right"] for lab in after["labs"]] == [0, 1, *[0] * 16]
    assert after["next"] == before["labs"][1]["exercises"][1]["id"]


def test_the_next_exercise_follows_the_last_solved_one_and_then_the_first_gap():
    labs = lab_source.labs()
    order = [id for lab in labs for id in lab.exercises]

    def after(*ids):
        return next_exercise([SolvedExercise(1, id, "t") for id in ids], labs)

    assert after() == order[0]
    assert after(order[0], order[4]) == order[5]
    assert after(order[4], order[5], order[0]) == order[1]
    assert after(*order[1:]) == order[0]
    assert after(*order) is None
    assert after("lab01.of_an_older_version") == order[0]
