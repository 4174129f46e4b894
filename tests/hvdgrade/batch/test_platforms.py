"""A class of each learning platform, from its download to the scores that go back to it."""

import csv
import json

import pytest
from exported import export, gradebook
from platform_downloads import DOWNLOADS

from hvdgrade.batch.results import load
from hvdgrade.export import nbgrader_score
from hvdgrade.export.nbgrader import NotGraded


def rows_of(file) -> list[dict]:
    with open(file, newline="", encoding="utf-8-sig") as opened:
        return list(csv.DictReader(opened))


def graded_class(school, platform):
    """Grade the download of a platform and check that every student is in every table."""
    download = DOWNLOADS[platform]
    school.folder = download.write(school.folder.parent / "download")
    options = []
    if download.ids:
        (school.folder / "ids.csv").write_text(download.ids)
        options = ["--ids", school.folder / "ids.csv"]
    answer = school.grade(*options)
    assert answer.returncode == 0, answer.stderr
    assert f"students: {len(download.names)}; DIR comes from: {download.title} (" in answer.stderr
    results = {document["submission"]["id"]: document for document in load(school.out)}
    assert set(results) == set(download.names)
    for id, document in results.items():
        assert document["status"] == ("graded" if id in download.graded else "not_gradable")
        assert download.reasons.get(id, "") in document["reason"]
    assert export(school.out, "csv").returncode == 0
    for table in ("summary.csv", "csv.csv"):
        rows = {row["student"].removeprefix("'"): row for row in rows_of(school.out / table)}
        assert {id: row["name"].removeprefix("'") for id, row in rows.items()} == download.names
        left_out = {id: row["left_out"] for id, row in rows.items() if row["left_out"]}
        assert left_out == {id: ", ".join(files) for id, files in download.left_out.items()}
    page = (school.out / "index.html").read_text()
    for files in download.left_out.values():
        assert f"left out, not graded: {files[0]}" in page
    return results


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("platform", ["brightspace", "blackboard", "github", "plain"])
def test_every_student_of_a_download_is_in_every_table(school, platform):
    graded_class(school, platform)


@pytest.mark.mpi
@pytest.mark.slow
def test_scores_go_back_to_canvas(school, tmp_path):
    results = graded_class(school, "canvas")
    people = [("Lovelace, Ada", 4001, "", "ada@uni.edu", "", ""), ("O'Neil, Zoë", 4002, *[""] * 4)]
    (tmp_path / "gradebook.csv").write_bytes(gradebook(people))
    column = "Assignment 1 (1234)"
    answer = export(
        school.out, "canvas", "--gradebook", tmp_path / "gradebook.csv", "--column", column
    )
    assert answer.returncode == 0, answer.stderr
    scores = {row["ID"]: row[column] for row in rows_of(school.out / "canvas.csv")}
    assert scores == {"": "100.00", "4001": f"{results['4001']['score']:g}", "4002": ""}
    assert "no score, not gradable: 4002" in answer.stdout
    assert "only by the user id" not in answer.stdout


@pytest.mark.mpi
@pytest.mark.slow
def test_scores_go_back_to_moodle(school, tmp_path):
    results = graded_class(school, "moodle")
    rows = [
        ("Identifier", "Full name", "Grade", "Maximum grade"),
        ("Participant 102231", "A", "", 100),
    ]
    with open(tmp_path / "sheet.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    answer = export(school.out, "moodle", "--worksheet", tmp_path / "sheet.csv")
    assert answer.returncode == 0, answer.stderr
    (row,) = rows_of(school.out / "moodle.csv")
    assert row["Grade"] == f"{results['102231']['score']:g}"


@pytest.mark.mpi
@pytest.mark.slow
def test_scores_go_back_to_gradescope(school):
    graded_class(school, "gradescope")
    assert export(school.out, "gradescope").returncode == 0
    folder = school.out / "gradescope"
    names = json.loads((folder / "students.json").read_text())
    assert set(names) == {"007", "ada@uni.edu", "zoe.o'neil@uni.edu"}
    assert all((folder / name / "results.json").exists() for name in names.values())


@pytest.mark.mpi
@pytest.mark.slow
def test_scores_go_back_to_nbgrader(school):
    results = graded_class(school, "nbgrader")
    if "synthetic" in results["ada@uni.edu"]["grader"]["data"]:
        with pytest.raises(NotGraded, match="ada_uni.edu~.* is a practice run"):
            nbgrader_score(school.out, student="ada@uni.edu")
    else:
        score = results["ada@uni.edu"]["score"]
        assert nbgrader_score(school.out, student="ada@uni.edu") == score
    with pytest.raises(NotGraded, match="it is a notebook"):
        nbgrader_score(school.out, student="o'neil")
