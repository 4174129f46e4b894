"""Scores for Gradescope and nbgrader: a submission without a score never becomes a zero."""

import hashlib
import json
import subprocess
import sys
import unicodedata

import pytest
from exported import (
    COLUMN,
    FIXTURES,
    export,
    gradebook,
    keep,
    result,
    tell_students,
)

from hvdgrade.batch.id_table import Student
from hvdgrade.batch.results import load
from hvdgrade.export import canvas, gradescope, nbgrader


def test_gradescope_adds_up_and_gives_no_zero_without_a_score(graded):
    for document in load(graded):
        payload = gradescope.payload(document)
        json.dumps(payload, allow_nan=False)
        if document["status"] == "graded":
            assert (
                sum(t["score"] for t in payload["tests"]) == payload["score"] == document["score"]
            )
            skipped = [t for t in payload["tests"] if t["extra_data"]["state"] == "skipped"]
            assert all("status" not in t for t in skipped)
            assert {t["status"] for t in payload["tests"] if t not in skipped} <= {
                "passed",
                "failed",
            }
        elif (
            document["status"] == "not_gradable"
        ):  # for run_autograder; a class gets no file, see below
            assert [(t["score"], t["max_score"]) for t in payload["tests"]] == [(0, 0)]
        else:
            assert payload is None
    said = export(graded, "gradescope").stdout.splitlines()
    assert said[0].endswith("gradescope: 2 files")
    assert said[1:] == ["no score, grader fault: =dave()", "no score, not gradable: carla"]


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_are_compared_as_a_reader_does(forms):
    ours, theirs = (unicodedata.normalize(form, "Zoë") for form in forms)
    assert ours != theirs
    people = [("Zoë", 1, "", theirs, "", "")]
    assert canvas.fill(gradebook(people), COLUMN, [result(ours)])[1] == [
        "filled: 1 (of 100 points)"
    ]


@pytest.mark.parametrize("score, of_100", [(90, 100), (0, 0), (45, 50), (37, 41.11)])
def test_a_score_is_of_100_where_a_check_does_not_count(tmp_path, score, of_100):
    document = result("ada", score, 90)
    payload = gradescope.payload(document)
    assert payload["score"] == of_100 and f"{score} of 90 points" in payload["output"]
    points = [(check["points"], check["max_points"]) for check in document["checks"]]
    assert [(test["score"], test["max_score"]) for test in payload["tests"]] == points
    (tmp_path / "ada.json").write_text(json.dumps(document))
    for arguments, factor in (((), 1), ((100,), 1), ((20,), 0.2)):
        given = nbgrader.nbgrader_score(tmp_path / "ada.json", *arguments)
        assert given == pytest.approx(of_100 * factor, abs=0.005)


def test_a_notebook_cell_gets_the_score_and_nothing_on_stderr():
    cell = "from hvdgrade.export import nbgrader_score; print(nbgrader_score({}))"
    for name, points, expected in (("ada", "", "100.0"), ("bob", ", 20", "7.4"), ("carla", "", "")):
        path = FIXTURES / "results" / f"{name}.json"
        answer = subprocess.run(
            [sys.executable, "-c", cell.format(f"{str(path)!r}{points}")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert answer.stdout.strip() == expected
        assert ("NotGraded: not_gradable" in answer.stderr) == (name == "carla")
        assert not answer.stderr or name == "carla"


def test_what_is_no_score_of_the_last_submission_is_none_for_nbgrader(graded, monkeypatch):
    document = result("ada", 90)
    keep(graded, document)
    path = graded / "results" / "ada.json"
    (graded / "submissions").mkdir(exist_ok=True)
    script = graded / "submissions" / "ada.py"
    script.unlink(missing_ok=True)
    assert nbgrader.nbgrader_score(path) == 90
    script.write_text("handed in again")
    with pytest.raises(nbgrader.NotGraded, match="ada.json belongs to an earlier submission"):
        nbgrader.nbgrader_score(path)
    monkeypatch.chdir(graded / "results")
    with pytest.raises(nbgrader.NotGraded, match="ada.json belongs to an earlier submission"):
        nbgrader.nbgrader_score("ada.json")
    document["submission"]["sha256"] = hashlib.sha256(b"handed in again").hexdigest()
    keep(graded, document)
    assert nbgrader.nbgrader_score(path) == 90
    document["grader"]["data"] = "synthetic CIFAR-10"
    keep(graded, document)
    with pytest.raises(nbgrader.NotGraded, match="ada.json is a practice run"):
        nbgrader.nbgrader_score(path)


@pytest.mark.parametrize("text", [None, '{"status"', "[]", '{"status": "graded"}'])
def test_what_is_not_graded_yet_is_no_zero_either(tmp_path, text):
    """nbgrader makes a zero of every error; by its name an instructor finds this one."""
    if text is not None:
        (tmp_path / "ada.json").write_text(text)
    with pytest.raises(nbgrader.NotGraded, match="ada.json is not a result of hvdgrade"):
        nbgrader.nbgrader_score(tmp_path / "ada.json")


def test_ids_of_a_platform_reach_every_payload(graded):
    """The folder of a result has a safe name; the ids and addresses lead to it."""
    bob = "bobsmith_4002_9917_assessment"
    (graded / "results" / "bob.json").rename(graded / "results" / f"{bob}.json")
    tell_students(
        graded,
        {
            "ada": Student("O'Neil, Zoë", "Zoë", "Zoe@Uni.edu", "gradescope"),
            bob: Student("=1+1", email="bob@uni.edu"),
            "carla": Student("zoe@uni.edu"),  # without a score
        },
    )
    assert export(graded, "gradescope").returncode == 0
    table = json.loads((graded / "gradescope" / "students.json").read_text())
    assert table == {"o'neil, zoë": "ada", "zoe@uni.edu": "ada", "=1+1": bob, "bob@uni.edu": bob}
    assert all((graded / "gradescope" / name / "results.json").exists() for name in table.values())
    for student, score in (("O'Neil, Zoë", 100), ("Zoe@Uni.edu", 100), ("=1+1", 37)):
        assert nbgrader.nbgrader_score(graded, student=student) == score
    assert nbgrader.nbgrader_score(graded, 20, student="=1+1") == pytest.approx(7.4)
    with pytest.raises(nbgrader.NotGraded, match="not_gradable"):
        nbgrader.nbgrader_score(graded, student="zoe@uni.edu")
    with pytest.raises(nbgrader.NotGraded, match="has not exactly one student eve"):
        nbgrader.nbgrader_score(graded, student="eve")


def test_an_address_of_two_students_leads_to_no_result(graded):
    bob = "bobsmith_4002_9917_assessment"
    tell_students(graded, {"ada": Student("a", email="x@u"), bob: Student("b", email="x@u")})
    assert export(graded, "gradescope").returncode == 0
    table = json.loads((graded / "gradescope" / "students.json").read_text())
    assert table == {"a": "ada", "b": bob}
