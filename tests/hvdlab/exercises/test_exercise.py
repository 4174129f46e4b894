"""A solved exercise is kept in a learner's notebook, and every check that a lab calls has the decorator."""

import ast
import inspect
from pathlib import Path

import pytest

from hvdlab import exercises
from hvdlab.course import lab_source
from hvdlab.course.answers_file import AnswersFile
from hvdlab.course.lab_source import exercise_id
from hvdlab.exercises import NotRun, NotYet, exercise

MODULES = sorted(Path(exercises.__file__).parent.glob("lab*.py"))


def check_double(double):
    """Demand twice x."""
    if double(2) != 4:
        raise NotYet("wrong")


def check_case(case, diagnosis):
    pass


@pytest.fixture
def file(tmp_path, monkeypatch):
    file = AnswersFile(tmp_path / "answers.json")
    monkeypatch.setattr(exercises, "learners_file", lambda: file)
    for check in (check_double, check_case):
        monkeypatch.setattr(check, "__module__", "hvdlab.exercises.lab07_title")
    return file


def test_a_solved_exercise_is_kept_by_name_and_by_case(file):
    exercise(check_double)(lambda x: 2 * x)
    exercise(check_case)(3, diagnosis="a")
    kept = [(one.lab, one.exercise) for one in file.entries()]
    assert kept == [(7, "lab07.double"), (7, "lab07.case 3")]


def test_an_answer_that_is_a_number_is_no_case(file, monkeypatch):
    def check_number(answer):
        pass

    monkeypatch.setattr(check_number, "__module__", "hvdlab.exercises.lab07_title")
    exercise(check_number)(5)
    assert [one.exercise for one in file.entries()] == ["lab07.number"]


def test_a_wrong_answer_is_not_kept(file):
    with pytest.raises(NotYet):
        exercise(check_double)(lambda x: x)
    assert file.entries() == []


def test_an_answer_that_was_not_run_is_not_kept(file, monkeypatch, capsys):
    def check_unread(answer):
        raise NotRun("a quick run")

    monkeypatch.setattr(check_unread, "__module__", "hvdlab.exercises.lab07_title")
    exercise(check_unread)(5)
    assert file.entries() == []
    assert "it does not count as right" in capsys.readouterr().out


def test_outside_a_learners_notebook_nothing_is_kept(file, monkeypatch):
    monkeypatch.setattr(exercises, "learners_file", lambda: None)
    exercise(check_double)(lambda x: 2 * x)
    assert file.entries() == []


def test_a_check_keeps_its_name_and_signature(file):
    decorated = exercise(check_double)
    assert decorated.__name__ == "check_double" and decorated.__doc__ == "Demand twice x."
    assert list(inspect.signature(decorated).parameters) == ["double"]


def decorated(path) -> set[str]:
    """Return the ids of the exercises of a module: checks that have the decorator, and FunctionExercise."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            if "exercise" in [ast.unparse(decorator) for decorator in node.decorator_list]:
                names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func) in ("FunctionExercise", "RankExercise"):
                names.add(ast.unparse(node.targets[0]))
    return {exercise_id(int(path.name[3:5]), name) for name in names}


@pytest.mark.parametrize("lab", lab_source.labs(), ids=lambda lab: lab.path.stem)
def test_every_check_that_a_lab_calls_has_the_decorator_in_a_module_of_this_lab(lab):
    own = [path for path in MODULES if path.name.startswith(f"lab{lab.number:02d}_")]
    kept = set().union(*map(decorated, own))
    called = {name.split()[0] for name in lab.exercises}
    assert called, "the lab calls no check as `module.check_name(...)`"
    assert called == kept, f"only called: {called - kept}; only decorated: {kept - called}"
