"""Files of answers are found in every kind of folder, and a hostile one is data or a sentence."""

import json
import os
from pathlib import Path

import pytest

from hvdgrade.labs import answer_files
from hvdgrade.labs.answer_files import find, parse
from hvdlab.course import workbook
from hvdlab.course.answers_file import AnswersFile, QuizAnswer, SolvedExercise

TIME = "2026-11-30T10:00:00+00:00"
SOLVED = {"lab": 2, "exercise": "lab02.gradient", "time": TIME}
FILE = json.dumps({"exercises": [SOLVED]}).encode()


def put(path: Path, content: bytes = FILE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_reads_what_the_notebooks_write(tmp_path):
    file = AnswersFile(tmp_path / "ada" / "notebooks" / "work" / "answers.json")
    file.add(SolvedExercise(2, "check_gradient", TIME))
    file.seed()
    workbook.Workbook(5, file).question(1, "a")
    workbook.Workbook(5, file).predict(1, 2.0, reason="two ranks")
    (ada,) = find(tmp_path)
    assert ada.student.id == "ada" and set(ada.entries) == set(file.entries())


@pytest.mark.parametrize(
    "name, id, platform",
    [
        ("ada/notebooks/work/answers.json", "ada", ""),
        ("ada/deep/course/notebooks/work/answers.json", "ada", ""),
        ("ada/answers (1).json", "ada", ""),
        ("ada.json", "ada", ""),
        ("Ada L_77_assignsubmission_file_/answers.json", "77", "moodle"),
        ("ladaada_17_301_answers.json", "17", "canvas"),
        ("ladaada_LATE_17_301_answers-1.json", "17", "canvas"),
    ],
)
def test_finds_the_file_of_each_learner(tmp_path, name, id, platform):
    put(tmp_path / name)
    (learner,) = find(tmp_path)
    assert (learner.student.id, learner.student.platform, learner.problem) == (id, platform, "")
    assert [one.exercise for one in learner.entries] == ["lab02.gradient"]


def test_the_file_with_the_latest_entry_counts(tmp_path):
    later = json.dumps(
        {"exercises": [{**SOLVED, "exercise": "lab02.hessian", "time": "2026-12-01"}]}
    )
    put(tmp_path / "ada/notebooks/work/answers.json")
    put(tmp_path / "ada/answers.json", later.encode())
    (ada,) = find(tmp_path)
    assert [one.exercise for one in ada.entries] == ["lab02.hessian"]


@pytest.mark.parametrize("folder", ["a/b/c/d/e/f/g", ".hidden", "runs", "site-packages", "env/lib"])
def test_does_not_look_everywhere(tmp_path, folder):
    put(tmp_path / "ada" / folder / "answers.json")
    put(tmp_path / "ada/env/pyvenv.cfg")
    (ada,) = find(tmp_path)
    assert ada.problem == "it has no answers.json" and ada.entries == ()


def test_a_crowd_of_files_ends_the_search_after_notebooks_and_work(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_files, "MAX_FILES", 30)
    for number in range(40):
        put(tmp_path / f"ada/aaa/{number}.txt")
    put(tmp_path / "ada/notebooks/work/answers.json")
    put(tmp_path / "ada/zzz/answers.json", b"{}")
    (ada,) = find(tmp_path)
    assert ada.problem == "" and ada.entries


def test_follows_no_link_and_waits_for_no_pipe(tmp_path):
    secret = put(tmp_path / "bob/notebooks/work/answers.json")
    home = tmp_path / "ada"
    (home / "work").mkdir(parents=True)
    (home / "answers.json").symlink_to(secret)
    (home / "notebooks").symlink_to(secret.parents[1])
    os.mkfifo(home / "work/answers.json")
    (tmp_path / "eve").symlink_to(home.parent / "bob")
    (tmp_path / "eve.json").symlink_to(secret)
    by_id = {}
    for learner in find(tmp_path):
        by_id.setdefault(learner.student.id, []).append(learner)
    assert by_id["bob"][0].entries
    for id in ("ada", "eve"):
        assert all(one.entries == () and one.problem for one in by_id[id])


DEEP = b"[" * 100_000 + b"]" * 100_000
HOSTILE = [
    b"",
    b"[]",
    b"null",
    b"\xff\xfe",
    DEEP,
    b'{"exercises": ' + DEEP + b"}",
    b'{"exercises": [{"lab": "2", "exercise": "x", "time": "y"}]}',
    b'{"exercises": [{"lab": 2, "exercise": "check_x abc", "time": "y"}]}',
    b'{"predictions": [{"lab": 1, "number": 1, "value": {}, "reason": "", "time": ""}]}',
    b'{"questions": {"0": 1}}',
    b'{"seed": 1.5, "exercises": []}',
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_what_the_notebooks_did_not_write_is_refused_without_quoting_it(content):
    with pytest.raises(answer_files.Unusable) as error:
        parse(content)
    assert str(error.value) == "its answers.json is not a file that the notebooks wrote"


def test_an_empty_or_too_large_file_has_its_own_sentence(tmp_path):
    with pytest.raises(answer_files.Unusable, match="is empty"):
        parse(b"{}")
    with open(put(tmp_path / "ada/answers.json"), "r+b") as file:
        file.truncate(answer_files.MAX_BYTES + 1)
    (ada,) = find(tmp_path)
    assert ada.problem == "its answers.json has more than 4 MB"


def test_whether_an_answer_is_right_is_computed_again():
    (question, *_) = workbook.questions(5)
    wrong = next(letter for letter in question.letters if letter != question.answer)
    claims = [
        (1, question.answer, False, True),
        (1, wrong, True, False),
        (1, "zz", True, False),
        (0, question.answer, True, False),
        (-1, question.answer, True, False),
        (999, question.answer, True, False),
    ]
    entries = [
        {"lab": 5, "number": number, "answer": answer, "right": claimed, "time": TIME}
        for number, answer, claimed, _ in claims
    ]
    entries.append({"lab": 10**30, "number": 1, "answer": "a", "right": True, "time": TIME})
    found = parse(json.dumps({"questions": entries}).encode())
    assert [one.right for one in found] == [truth for *_, truth in claims] + [False]


def test_drawn_numbers_are_judged_by_the_seed_of_the_learner():
    lab, number = next(
        (lab, number)
        for lab in range(1, 19)
        for number, question in enumerate(workbook.questions(lab), 1)
        if question.answer != workbook.questions(lab, 7)[number - 1].answer
    )
    answer = repr(workbook.questions(lab, 7)[number - 1].answer)
    entry = {"lab": lab, "number": number, "answer": answer, "right": False, "time": TIME}
    for seed, right in ((7, True), (None, False)):
        document = {"questions": [entry]} | ({"seed": seed} if seed else {})
        (found,) = parse(json.dumps(document).encode())
        assert isinstance(found, QuizAnswer) and found.right is right
