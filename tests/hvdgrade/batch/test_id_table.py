"""The table of students, with every id that a learning platform can produce."""

import json

import pytest
from exported import keep, result, tell_students

from hvdgrade.batch import handed_in, id_table
from hvdgrade.batch.id_table import BadTable, Student, find_name, read_pairs
from hvdgrade.batch.results import load

IDS = ["ada@uni.edu", "O'Neil", "Zoë Müller", "a b", "=1+1", "-rf", "@x", "007", '"', "a,b;c", "王"]


def test_every_id_comes_back(tmp_path):
    students = {
        f"file{number}": Student(
            id, f"name of {id}", f"{number}@uni.edu", "moodle", (id,), (id, "b")
        )
        for number, id in enumerate(IDS)
    }
    tell_students(tmp_path, students)
    assert id_table.read_students(tmp_path) == students
    assert [find_name(students, id) for id in IDS] == list(students)
    assert [find_name(students, f" {number}@uni.edu") for number in range(3)] == list(students)[:3]
    assert find_name(students, "nobody") is find_name(students, "") is None


def test_an_id_of_two_students_is_nobodys():
    students = {
        "a": Student("x"),
        "b": Student("x"),
        "c": Student("y", email="z@u"),
        "d": Student("z@u"),
    }
    assert [find_name(students, id) for id in ("x", "y", "z@u")] == [None, "c", "d"]


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"nonsense": 1}}', None])
def test_an_output_folder_without_a_table_has_no_students(tmp_path, text):
    if text is not None:
        (tmp_path / id_table.STUDENTS).write_text(text)
    assert id_table.read_students(tmp_path) == {}


def test_results_have_the_ids_of_the_last_table(graded):
    """With `--ids` an instructor can name students after they were graded."""
    keep(graded, result("old"))
    keep(graded, result("gone"))
    tell_students(
        graded,
        {
            "ada": Student("ada@uni.edu", "Ada L.", "a@uni.edu", left_out=("helpers.py",)),
            "carla": Student("gone"),  # the earlier result of this student had other files
        },
    )
    documents = {d["batch"]["name"]: d["submission"] for d in load(graded)}
    assert "gone" not in documents and documents["old"]["id"] == "old"
    assert documents["carla"]["id"] == "gone"
    ada = documents["ada"]
    assert (ada["id"], ada["student"]) == ("ada@uni.edu", "Ada L. (ada@uni.edu)")
    assert (ada["name"], ada["email"], ada["left_out"]) == ("Ada L.", "a@uni.edu", ["helpers.py"])
    stored = json.loads((graded / "results" / "ada.json").read_text())
    assert stored["submission"]["id"] == "ada"
    assert not any("ada" in line for line in handed_in.withdrawn(load(graded), graded))


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "cannot be read: No such file"),
        (b"", "must be UTF-8 with two columns separated by commas: name, student id."),
        (b"ada;1\n", "must be UTF-8 with two columns"),
        (b"ada,\n", "must be UTF-8 with two columns"),
        ("Zoë,1\n".encode("utf-16"), "must be UTF-8 with two columns"),
        (b"ada,1\nada,2\n", "has two student ids for ada: keep one of them."),
    ],
)
def test_what_is_no_table_of_ids_is_refused(tmp_path, content, words):
    if content is not None:
        (tmp_path / "ids.csv").write_bytes(content)
    with pytest.raises(BadTable) as error:
        read_pairs(tmp_path / "ids.csv", "name", "student id")
    assert words in str(error.value)


def test_a_table_of_ids_may_come_from_excel(tmp_path):
    rows = '\ufefffolder,id,remark\r\n"O\'Neil, Zoë - 2 May",=1+1,x\r\n ada , 007 \r\nbob\r\n'
    (tmp_path / "ids.csv").write_bytes(rows.encode())
    assert read_pairs(tmp_path / "ids.csv", "name", "id") == {
        "folder": "id",
        "O'Neil, Zoë - 2 May": "=1+1",
        "ada": "007",
    }
