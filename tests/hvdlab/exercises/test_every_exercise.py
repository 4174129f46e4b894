"""What must hold for every exercise in which a learner writes a function, see `FunctionExercise`.

Right answers in other styles are in other_answers/labNN.py: for each exercise a list of two or more. The dict
REFUSED there has wrong answers that are no edits of the right function: its name -> pairs of an answer and
words of the message.
"""

import importlib.util
import inspect
from functools import cache
from importlib import import_module
from pathlib import Path

import forked_ranks
import numpy as np
import pytest

from hvdlab import exercises
from hvdlab.course import lab_source
from hvdlab.exercises import NotYet
from hvdlab.exercises.harness import function_exercise, gloo_ranks
from hvdlab.exercises.harness.function_exercise import FunctionExercise
from hvdlab.exercises.harness.rank_exercise import RankExercise

COMPLETE = lab_source.LEVELS[0]
OTHER_ANSWERS = Path(__file__).with_name("other_answers")
MODULES = sorted(Path(exercises.__file__).parent.glob("lab*.py"))
EXERCISES = {
    one.id: one
    for path in MODULES
    for one in vars(import_module(f"hvdlab.exercises.{path.stem}")).values()
    if isinstance(one, FunctionExercise)
}


@pytest.fixture(autouse=True)
def forked(request, monkeypatch):
    """Fork the ranks that Gloo connects from this process: a second instead of five."""
    if isinstance(request.node.callspec.params["one"], RankExercise):
        monkeypatch.setattr(gloo_ranks, "call", forked_ranks.call)


@cache
def other_answers(lab: int):
    """Return the module with right answers of a lab."""
    path = OTHER_ANSWERS / f"lab{lab:02d}.py"
    spec = importlib.util.spec_from_file_location(f"other_answers_lab{lab:02d}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refused_answers(one: FunctionExercise) -> list[tuple]:
    return getattr(other_answers(one.lab), "REFUSED", {}).get(one.right.__name__, [])


def marked(one: FunctionExercise, *values, id: str):
    """Return a parameter; an exercise that runs its answers on ranks is tested with them."""
    marks = [pytest.mark.mpi, pytest.mark.slow] if one.on_ranks else []
    return pytest.param(one, *values, marks=marks, id=id)


def each(**only):
    return [
        marked(one, id=one.id)
        for one in EXERCISES.values()
        if all(getattr(one, name) == value for name, value in only.items())
    ]


def refused(check, answer) -> str:
    """Return what the check of an exercise says about an answer: one line."""
    with pytest.raises(NotYet) as error:
        check(answer)
    assert "\n" not in str(error.value).strip()
    return str(error.value)


@pytest.mark.parametrize("one", each())
def test_the_right_function_passes(one, capsys):
    one(one.right)
    assert capsys.readouterr().out == f"Right: {one.passed}\n"
    for case, found in zip(one.cases, one.expected, strict=True):
        if case.expected is not None:
            by_hand = case.expected
            if not isinstance(by_hand, dict):
                (by_hand,) = [{name: by_hand} for name in found]
            for name, expected in by_hand.items():
                assert one.same(found[name], np.reshape(expected, np.shape(found[name]))), name


@pytest.mark.parametrize("one", each())
def test_right_answers_in_other_styles_pass(one):
    others = getattr(other_answers(one.lab), one.right.__name__)
    assert len(others) >= 2, "write right answers in at least two other styles"
    for answer in others:
        one(answer)


MISTAKES = [
    marked(one, number, id=f"{one.id}-{number}")
    for one in EXERCISES.values()
    for number in range(len(one.mistakes))
]


@pytest.mark.parametrize("one, number", MISTAKES)
def test_each_mistake_is_named_by_its_own_sentence(one, number):
    """So no two mistakes give the same answers on the cases, and each differs from the right function."""
    sentence, mistake = one.mistakes[number]
    if isinstance(one, RankExercise):  # all in one launch
        said = refused(one.judge, one.wrong[number][1])
    else:
        said = refused(one, mistake)
    assert sentence in said


@pytest.mark.parametrize("one", [one for one in each() if refused_answers(one.values[0])])
def test_other_wrong_answers_are_refused(one):
    for answer, words in refused_answers(one):
        assert words in refused(one, answer)


LEVELS = {id: level for lab in lab_source.labs() for id, level in lab.levels.items()}
OPEN = [one for one in each() if LEVELS.get(one.values[0].id, COMPLETE) != COMPLETE]


@pytest.mark.parametrize("one", OPEN)
def test_an_open_exercise_was_tried_with_many_answers(one):
    """The check of an exercise with many right answers accepts three styles, and refuses five wrong ones."""
    assert len(getattr(other_answers(one.lab), one.right.__name__)) >= 3
    assert len(one.mistakes) + len(refused_answers(one)) >= 5


@pytest.mark.parametrize("one", each())
def test_every_wrong_answer_gets_a_reason(one):
    for case in one.cases:
        assert case.reason[-1:] in ".?)", case


def stub(*arguments):
    raise NotImplementedError("Lab 2, exercise 1: write it")


@pytest.mark.parametrize("one", each())
def test_a_stub_keeps_its_message(one):
    with pytest.raises(NotImplementedError, match="^Lab 2, exercise 1: write it$"):
        one(stub)


UNUSABLE = {
    "none": (lambda *arguments: None, ""),
    "text": (lambda *arguments: "three", ""),
    "wrong shape": (lambda *arguments: np.zeros((3, 1, 7)), ""),
    "an error": (lambda *arguments: 1 / 0, "raises ZeroDivisionError: division by zero"),
    "too few parameters": (lambda: 1, "raises TypeError"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
@pytest.mark.parametrize("one", each(on_ranks=False))
def test_an_unusable_answer_gets_one_line(one, kind):
    if kind == "too few parameters" and not inspect.signature(one.right).parameters:
        pytest.skip("a function without parameters cannot have too few")
    answer, words = UNUSABLE[kind]
    assert words in refused(one, answer)


@pytest.mark.parametrize("one", each())
def test_no_function_at_all_gets_one_line(one):
    assert "needs a function and got 5" in refused(one, 5)


@pytest.mark.parametrize("one", each(on_ranks=False))
def test_an_endless_loop_gets_one_line(one, monkeypatch):
    def endless(*arguments):
        while True:
            pass

    assert one.expected  # not in the time of the learner
    monkeypatch.setattr(function_exercise, "SECONDS", 0.2)
    assert "does its loop end?" in refused(one, endless)


def mutable(one: FunctionExercise) -> list[int]:
    return [
        n
        for n, value in enumerate(one.cases[0].arguments)
        if isinstance(value, np.ndarray | list | dict)
    ]


@pytest.mark.parametrize(
    "one",
    [marked(one, id=one.id) for one in EXERCISES.values() if mutable(one) and not one.on_ranks],
)
def test_a_changed_argument_gets_one_line(one):
    def changes(*arguments):
        answer = one.right(*arguments)
        given = arguments[mutable(one)[0]]
        if isinstance(given, list):
            given.append(given[0] if given else 1.0)
        elif isinstance(given, dict):
            given.clear()
        else:
            given += 1
        return answer

    assert "changes what it is given" in refused(one, changes)
