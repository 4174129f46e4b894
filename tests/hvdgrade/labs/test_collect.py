"""A class of 30 learners: what the page, the table and the gradebook say equals what the learners did."""

import csv
import datetime
import io
import json
import re
from html.parser import HTMLParser

import pytest

from hvdgrade import cli
from hvdgrade.labs import class_progress
from hvdgrade.labs.answer_files import Learner, find
from hvdgrade.labs.class_progress import of_learner, stuck, values_in_words
from hvdgrade.labs.page import page, table
from hvdlab.course import lab_source, workbook
from hvdlab.course.answers_file import (
    AnswersFile,
    OpenedHint,
    Prediction,
    QuizAnswer,
    Result,
    SolvedExercise,
)

LABS = {lab.number: lab for lab in lab_source.labs()}
LAB = 5
EXERCISES = LABS[LAB].exercises
(QUESTION, *_) = workbook.questions(LAB)
WRONG = [letter for letter in QUESTION.letters if letter != QUESTION.answer]
HOSTILE = "=1+2<script>alert(1)</script>"


def at(day: int) -> str:
    return datetime.datetime(2026, 11, day, 12, tzinfo=datetime.UTC).isoformat()


def learner(number: int, path) -> None:
    """Let learner `number` do lab 5: solve number % 6 exercises, be stuck at the next one, and so on."""
    file, day = AnswersFile(path), 20 if number != 7 else 2
    for exercise in EXERCISES[: number % 6]:
        file.add(SolvedExercise(LAB, exercise, at(day)))
    if number % 3 == 0:
        file.add(OpenedHint(LAB, EXERCISES[number % 6], 1, at(day)))
        file.add(OpenedHint(LAB, EXERCISES[0], 1, at(day)))  # solved, or the same if none is
    if number % 10 == 0:
        file.add(QuizAnswer(LAB, 1, WRONG[0], False, at(day)))
    file.add(QuizAnswer(LAB, 1, QUESTION.answer, True, at(day)))
    file.add(Prediction(LAB, 1, float(number), HOSTILE if number % 2 else "", at(day)))
    if number < 20:
        file.add(Result(LAB, 1, 8.0, at(day)))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    for number in range(30):
        learner(number, folder / f"learner{number:02}" / "course/notebooks/work/answers.json")
    (folder / "nobody").mkdir()
    return folder


@pytest.fixture(scope="module")
def class_(home):
    labs = list(LABS.values())
    return [of_learner(one, labs) for one in find(home)]


def test_a_table_has_a_row_per_learner(class_):
    rows = list(csv.DictReader(io.StringIO(table(class_, list(LABS.values())).decode("utf-8-sig"))))
    assert len(rows) == 31
    for number, row in enumerate(rows[:30]):
        assert row["id"] == f"learner{number:02}" and row[f"lab {LAB} solved"] == str(number % 6)
        assert row[f"lab {LAB} right"] == "1" and row[f"lab {LAB} predicted"] == str(number % 2)
        assert bool(row["stuck"]) == (number % 3 == 0)
    assert rows[30]["id"] == "nobody" and rows[30]["problem"] == "it has no answers.json"


def test_the_page_counts_what_the_class_did(home, tmp_path, capsys):
    out = tmp_path / "class.html"
    assert cli.main(["labs", "collect", str(home), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "30 of 31 learners" in said and "not read, nobody: it has no answers.json" in said
    text = words(out.read_text("utf-8"))
    # 30 with answers, every third stuck, one (7) quiet since 18 days before the others, one without a file.
    assert "30 ✓ learners with answers" in text and "10 ◐ stuck somewhere" in text
    assert "1 – quiet for a week" in text and "1 ! without a file" in text
    assert f"{LAB} {LABS[LAB].title} 30 2.5 of {len(EXERCISES)} 100 %" in text
    assert "27 of 30 right at once" in text  # all but 0, 10 and 20
    choice = " ".join(QUESTION.choices[QUESTION.letters.index(WRONG[0])].split())
    assert f"{WRONG[0]} : {choice} 3" in text or f"{WRONG[0]}: {choice} 3" in text
    # 20 of 30 have a result, which is 8: 6 to 10 are within a quarter of it.
    assert "15 of 30 5 of 20 median 14.5 (0 to 29) 8" in text


def words(text: str) -> str:
    """Return the words of a page, whose tags are all harmless."""
    pieces, style = [], [False]

    class Page(HTMLParser):
        def handle_starttag(self, tag, attributes):
            style[0] = tag == "style"
            assert tag not in ("script", "img", "iframe", "a", "form", "link")
            assert not any(name.startswith("on") for name, _ in attributes)

        def handle_data(self, data):
            if not style[0]:
                pieces.append(data)

        def handle_endtag(self, tag):
            style[0] = False

    Page().feed(text)
    return " ".join(" ".join(pieces).split())


def test_hostile_names_texts_and_times_are_only_data(tmp_path):
    folder = tmp_path / (HOSTILE.replace("/", "∕") + "\u202e")
    document = {
        "predictions": [
            {
                "lab": LAB,
                "number": 1,
                "value": HOSTILE,
                "reason": HOSTILE,
                "time": "9999-12-31T23:59Z",
            },
            {"lab": LAB, "number": 1, "value": float("nan"), "reason": "", "time": HOSTILE},
            {"lab": LAB, "number": 99, "value": 1, "reason": "", "time": "0001-01-01T00:00+14:00"},
        ],
        "questions": [
            {"lab": LAB, "number": 1, "answer": HOSTILE + "\x1b[31m", "right": True, "time": "now"},
            {"lab": -LAB, "number": 1, "answer": "a", "right": True, "time": ""},
        ],
        "exercises": [{"lab": LAB, "exercise": HOSTILE, "time": ""}],
        "hints": [{"lab": LAB, "exercise": HOSTILE, "number": 1, "time": ""}],
        "results": [{"lab": LAB, "number": 1, "value": HOSTILE, "time": HOSTILE}],
    }
    folder.mkdir()
    (folder / "answers.json").write_text(json.dumps(document))
    labs = [LABS[LAB]]
    class_ = [of_learner(one, labs) for one in find(tmp_path)]
    assert not class_[0].learner.problem and class_[0].last is None
    text = page(class_, labs, HOSTILE)
    assert HOSTILE.replace("/", "∕") in words(text) and "<script" not in text
    assert "\x1b" not in text and "\u202e" not in text
    (row,) = csv.DictReader(io.StringIO(table(class_, labs).decode("utf-8-sig")))
    assert row["id"].startswith("'=") and row[f"lab {LAB} solved"] == "0"


def test_learners_whose_names_look_the_same_are_told_apart(home):
    (one, two, *_) = find(home)
    student = {"name": "Zo\u00eb"}, {"name": "Zoe\u0308"}
    twins = [
        Learner(type(each.student)(each.student.id, **name), each.entries)
        for each, name in zip((one, two), student, strict=True)
    ]
    text = words(page([of_learner(each, [LABS[LAB]]) for each in twins], [LABS[LAB]], "x"))
    assert "id 'learner00'" in text and "id 'learner01'" in text


CANVAS = "Student,ID,SIS Login ID,Section,Labs (17)\n    Points Possible,,,,8\n"


def test_fills_a_gradebook_of_canvas_from_its_download(tmp_path):
    download, gradebook, scores = (tmp_path / name for name in ("download", "book.csv", "new.csv"))
    download.mkdir()
    text = CANVAS
    for number in range(30):
        learner(number, download / f"learner_{100 + number}_{900 + number}_answers.json")
        text += f"Learner,{100 + number},l{number},A,\n"
    gradebook.write_text(text + "Absent,99,absent,A,\n")
    arguments = ["--lab", str(LAB), "--canvas", str(gradebook), "--column", "Labs (17)"]
    out = ["--out", str(tmp_path / "page.html"), "--scores", str(scores)]
    assert cli.main(["labs", "collect", str(download), *out, *arguments]) == 0
    rows = list(csv.reader(io.StringIO(scores.read_text())))[2:]
    for number, row in enumerate(rows[:30]):
        assert float(row[4]) == pytest.approx(8 * (number % 6) / len(EXERCISES), abs=0.005)
    assert rows[30][4] == ""


def test_fills_a_worksheet_of_moodle(tmp_path):
    learner(3, tmp_path / "in/Ada_77_assignsubmission_file_/answers.json")
    sheet, scores = tmp_path / "sheet.csv", tmp_path / "new.csv"
    sheet.write_text("Identifier,Full name,Grade,Maximum grade\nParticipant 77,Ada,,10.00\n")
    arguments = ["--out", str(tmp_path / "p.html"), "--moodle", str(sheet), "--scores", str(scores)]
    assert cli.main(["labs", "collect", str(tmp_path / "in"), "--lab", str(LAB), *arguments]) == 0
    (_, row) = csv.reader(io.StringIO(scores.read_text()))
    assert float(row[2]) == pytest.approx(10 * 3 / len(EXERCISES), abs=0.005)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nowhere"], "nowhere: No such file"),
        (["."], "is empty: expected a folder or a file for each learner"),
        ([".", "--lab", "99"], "there is no lab 99: the labs are 1 to 18"),
        ([".", "--canvas", "x.csv", "--column", "A (1)"], "needs --scores"),
        ([".", "--canvas", "x.csv", "--scores", "y.csv"], "--canvas needs --column"),
        ([".", "--moodle", "x.csv", "--scores", "x.csv"], "names the exported file itself"),
    ],
)
def test_wrong_use_gets_one_sentence(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["labs", "collect", *arguments, "--out", "page.html"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hvdgrade labs: ") and said in line


def test_stuck_is_what_was_begun_and_not_solved():
    first, second, third = EXERCISES[:3]
    entries = [
        *(OpenedHint(LAB, exercise, 1, "") for exercise in (first, second)),
        *(OpenedHint(LAB, second, number, "") for number in (1, 2)),  # opened twice counts once
        SolvedExercise(LAB, first, ""),
        SolvedExercise(LAB, third, ""),
        *(QuizAnswer(LAB, 1, "a", False, "") for _ in range(3)),
        *(QuizAnswer(LAB, 2, "a", False, "") for _ in range(2)),
        *(QuizAnswer(LAB, 3, "a", right, "") for right in (False, False, False, True)),
    ]
    assert stuck(entries, [LABS[LAB]]) == [
        f"{class_progress.titled(second)}: 2 hints opened",
        f"lab {LAB}, question 1: 3 wrong answers",
    ]


def test_values_of_predictions_in_words():
    assert values_in_words([1, 3.5, 10]) == "median 3.5 (1 to 10)"
    assert values_in_words(["ring", "ring", "naive"]) == "ring: 2; naive: 1"
    assert values_in_words([float("inf")]) == ""


def test_every_prediction_of_the_course_has_its_question():
    for lab in LABS.values():
        asked = class_progress.questions_of_predictions(lab)
        assert asked.keys() == lab.predictions, lab.number
        assert not any(re.search(r"Replace|None", text) for text in asked.values())
