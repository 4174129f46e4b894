"""The workbook keeps predictions and answers, and names what it cannot accept in one sentence."""

import json

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from hvdlab.course import answers_file, experiment, workbook
from hvdlab.course.answers_file import (
    AnswersFile,
    OpenedHint,
    Prediction,
    QuizAnswer,
    Result,
    SolvedExercise,
)
from hvdlab.course.workbook import Workbook, WorkbookError

QUESTIONS = """
[[question]]
text = "Which one?"
choices = ["this", "that", "none"]
answer = "b"
explanation = "Because it is that."
[question.feedback]
a = "Not this."
c = "There is one."

[[question]]
text = "How many?"
answer = 1.2
explanation = "Six fifths."
mistakes = [[0.6, "You halved it."]]
otherwise = "Count again."
"""


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Return the workbook of a lab 7 with a choice and a number."""
    (tmp_path / "07_title.toml").write_text(QUESTIONS)
    monkeypatch.setattr(workbook, "QUESTIONS", tmp_path)
    return Workbook(7, AnswersFile(tmp_path / "new" / "answers.json"))


def entries(book, kind):
    return [entry for entry in book._file.entries() if isinstance(entry, kind)]


def test_a_prediction_is_kept_with_its_reason_and_returned(book):
    assert book.predict(1, 600, reason="the batch is doubled") == 600
    assert book.predict(2, np.int64(3), reason="a count") == 3
    assert book.predict(3, " File", form=["file", "64"], reason="a choice") == "file"
    assert book.predict(4, 64, form=["file", "64"], reason="a choice") == "64"
    assert book.predict(5, "two words", form=str, reason="a sentence") == "two words"
    kept = entries(book, Prediction)
    assert [(one.lab, one.number, one.value, one.reason) for one in kept] == [
        (7, 1, 600.0, "the batch is doubled"),
        (7, 2, 3.0, "a count"),
        (7, 3, "file", "a choice"),
        (7, 4, "64", "a choice"),
        (7, 5, "two words", "a sentence"),
    ]
    assert all(one.time.endswith("+00:00") for one in kept)


def test_no_prediction_is_no_entry_and_a_missing_reason_is_asked_for(book, capsys):
    assert book.predict(1, None, reason=None) is None
    assert book.predict(1, None, reason="only a reason") is None
    assert entries(book, Prediction) == []
    assert "replace both values of None" in capsys.readouterr().out
    assert book.predict(1, 5) == 5
    assert "Prediction 1: add a reason" in capsys.readouterr().out
    assert [one.reason for one in entries(book, Prediction)] == [""]


def test_a_result_is_kept_and_said_beside_the_last_prediction(book, capsys):
    book.predict(1, 500, reason="a guess")
    book.predict(1, 600, reason="the batch is doubled")
    book.predict(2, "ring", form=["ring", "naive"], reason="fewer bytes")
    capsys.readouterr()
    later = Workbook(7, book._file)  # after a restart of the kernel
    for each in (book, later, Workbook(7)):
        each.result(1, np.float32(587.654))
        each.result(2, "naive")
        each.result(3, 0)
    said = capsys.readouterr().out.splitlines()
    expected = [
        "Prediction 1: you predicted 600, and the result is 587.7.",
        'Prediction 2: you predicted "ring", and the result is "naive".',
        "Prediction 3: the result is 0.",
    ]
    assert said[:6] == 2 * expected
    assert said[6] == "Prediction 1: the result is 587.7."  # nothing is kept
    kept = [(one.number, one.value) for one in entries(book, Result)]
    assert kept == 2 * [(1, pytest.approx(587.654)), (2, "naive"), (3, 0.0)]


@pytest.mark.parametrize(
    ("value", "form", "reason", "said"),
    [
        (
            [1, 2],
            float,
            "two",
            r"^Prediction 1 must be a number, without quotes\. Received: \[1, 2\]$",
        ),
        ("many", float, "a text", r"^Prediction 1 must be a number, .* Received: 'many'$"),
        (float("nan"), float, "no number", "^Prediction 1 must be a number, .* Received: nan$"),
        (True, float, "no number", "^Prediction 1 must be a number, .* Received: True$"),
        (3, str, "no text", "^Prediction 1 must be some words in quotes. Received: 3$"),
        (
            "x",
            ["a", "b", "c"],
            "no choice",
            r'^Prediction 1 must be "a", "b" or "c"\. Received: \'x\'$',
        ),
        (1, float, 2, r"^Prediction 1: the reason must be a sentence in quotes, .* Received: 2$"),
    ],
)
def test_refuses_a_prediction_of_another_form(book, value, form, reason, said):
    with pytest.raises(WorkbookError, match=said):
        book.predict(1, value, form=form, reason=reason)
    assert entries(book, Prediction) == []


@pytest.mark.parametrize(
    ("number", "answer", "said", "right"),
    [
        (1, "b", "**Right.** Because it is that.", True),
        (1, " B ", "**Right.** Because it is that.", True),
        (1, "a", "**Not yet.** Not this.", False),
        (2, 1.21, "**Right.** Six fifths.", True),
        (2, "1.2", "**Right.** Six fifths.", True),
        (2, 0.6, "**Not yet.** You halved it.", False),
        (2, 7, "**Not yet.** Count again.", False),
    ],
)
def test_an_answer_gets_its_feedback_and_is_kept(book, capsys, number, answer, said, right):
    assert book.question(number, answer=answer) is None
    assert capsys.readouterr().out.splitlines()[-1] == said
    (kept,) = entries(book, QuizAnswer)
    assert (kept.lab, kept.number, kept.answer, kept.right) == (7, number, str(answer), right)


def test_without_an_answer_the_question_is_shown_and_nothing_is_kept(book, capsys):
    book.question(1, answer=None)
    said = capsys.readouterr().out
    assert "**Question 1.** Which one?" in said and "* **c** none" in said
    assert "letters a to c" in said and "Not this" not in said
    book.question(2)
    assert "*Put a number in place of None.*" in capsys.readouterr().out
    assert entries(book, QuizAnswer) == []


@pytest.mark.parametrize(
    ("number", "answer", "said"),
    [
        (3, "a", "^lab 7 has the questions 1 to 2. Received: 3$"),
        ("1", "a", "^lab 7 has the questions 1 to 2. Received: '1'$"),
        (1, "d", "^answer must be one of a, b, c. Received: 'd'$"),
        (1, "", "^answer must be one of a, b, c. Received: ''$"),
        (1, 2, "^answer must be one of a, b, c. Received: 2$"),
        (2, "many", "^answer must be a number. Received: 'many'$"),
    ],
)
def test_a_learners_mistake_is_one_sentence(book, number, answer, said):
    with pytest.raises(WorkbookError, match=said):
        book.question(number, answer=answer)
    assert entries(book, QuizAnswer) == []


def test_a_lab_without_questions_is_named(book):
    with pytest.raises(WorkbookError, match=r"lab 9 has no questions: there is no .*09_NAME\.toml"):
        Workbook(9).question(1)


def test_a_notebook_shows_the_sentence_without_a_traceback(book, capsys):
    shell = InteractiveShell.instance()
    shell.user_ns["book"] = book
    shell.run_cell("book.question(1, answer='z')")
    said = "".join(capsys.readouterr())
    InteractiveShell.clear_instance()
    assert said.strip() == "answer must be one of a, b, c. Received: 'z'"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"predictions": [{"lap": 1}]}', "\x00"])
def test_a_file_of_something_else_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "answers.json"
    path.write_text(content)
    with pytest.raises(
        WorkbookError, match="answers.json is not a file of answers .* Move it away"
    ):
        AnswersFile(path).add(SolvedExercise(1, "check_one", "now"))
    assert path.read_text() == content


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "answers.json.part").mkdir()
    with pytest.raises(WorkbookError, match="answers.json cannot be written"):
        AnswersFile(tmp_path / "answers.json").add(SolvedExercise(1, "check_one", "now"))


def test_entries_of_all_kinds_come_back_in_order(tmp_path):
    file = AnswersFile(tmp_path / "answers.json")
    written = [
        Prediction(1, 1, 0.5, "why", "t1"),
        Prediction(1, 1, "b", "why", "t2"),
        QuizAnswer(1, 2, "b", True, "t3"),
        SolvedExercise(1, "check_one", "t4"),
        OpenedHint(1, "lab01.one", 1, "t5"),
        Result(1, 1, 0.25, "t6"),
    ]
    for entry in written:
        file.add(entry)
    assert file.entries() == written
    kept = json.loads(file.path.read_text())
    assert set(kept) == {"predictions", "questions", "exercises", "hints", "results"}
    del kept["results"]  # a file of an earlier version
    file.path.write_text(json.dumps(kept))
    assert file.entries() == written[:-1]
    file.add(written[-1])
    assert file.entries() == written


@pytest.mark.parametrize(
    ("notebook", "variables", "kept"),
    [
        (True, {}, True),
        (False, {}, False),  # `python labs/02_gradient_descent.py`
        (True, {"LAB_WORK": "notebooks/work/solutions"}, False),
    ],
)
def test_only_a_learners_notebook_keeps_anything(monkeypatch, notebook, variables, kept):
    monkeypatch.delenv("LAB_WORK", raising=False)
    monkeypatch.setattr(experiment, "NOTEBOOK", notebook)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    file = answers_file.learners_file()
    assert (file is not None) == kept
    if kept:
        assert file.path == experiment.LABS.parent / "notebooks/work/answers.json"
