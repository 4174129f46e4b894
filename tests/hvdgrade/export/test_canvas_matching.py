"""The row of a gradebook that belongs to a student, for ids of Canvas, addresses, and damaged gradebooks."""

import csv
import io

import pytest
from exported import COLUMN, gradebook, result

from hvdgrade.batch.results import CannotExport
from hvdgrade.export import canvas


def canvas_student(id: str, name: str, score: int = 42) -> dict:
    """Return the result of a student from Canvas's download."""
    document = result(id, score)
    document["submission"] |= {"name": name, "platform": "canvas"}
    return document


def test_the_user_id_of_a_download_is_canvass_own():
    people = [
        ("Lovelace, Ada", 4001, "4002", "4003", "", ""),
        ("Smith, Bob", 4002, "", "bob", "", ""),
        ("Eve", 4004, "9", "4009", "", ""),
    ]
    documents = [canvas_student("4002", "smithbob"), canvas_student("4009", "mallory", 99)]
    after, said = canvas.fill(gradebook(people), COLUMN, documents)
    rows = {row[0]: row[5] for row in csv.reader(io.StringIO(after.decode(), newline=""))}
    assert [rows[name] for name, *_ in people] == ["", "42", ""]
    assert said[1:] == [
        "no row in the gradebook: mallory (4009)",
        "no result: Lovelace, Ada",
        "no result: Eve",
    ]
    _, said = canvas.fill(gradebook(people), COLUMN, [canvas_student("4002", "theteam")])
    assert (
        said[1] == "matched only by the user id in its name: theteam (4002) belongs to Smith, Bob"
    )


def test_a_login_may_be_the_address_of_a_student_with_another_id():
    people = [("A", 1, "", "ada@uni.edu", "", ""), ("B", 2, "", "77", "", "")]
    document = result("77x", 42)
    document["submission"]["email"] = "ada@uni.edu"
    after, _ = canvas.fill(gradebook(people), COLUMN, [document])
    assert b"ada@uni.edu,,42," in after


@pytest.mark.parametrize("ids, logins", [("{}", "{}@uni.edu"), ("{}@mail.org", "{}")])
def test_the_part_before_the_at_sign_is_offered_once_and_used_only_if_asked(ids, logins):
    people = [
        (name.upper(), n, "", logins.format(name), "", "") for n, name in enumerate("abcd", 11)
    ]
    people += [("D2", 15, "", "d@other.org", "", "")] * (logins != "{}")
    students = [ids.format(name) for name in ("a", "b", "d", "x")]
    before = gradebook(people)
    after, said = canvas.fill(before, COLUMN, [result(id, 42) for id in students])
    assert after == before
    count = 2 if logins != "{}" else 3
    assert said[1:3] == [
        f"no row in the gradebook: {', '.join(students)}",
        f"{count} of these match exactly one login each by the part before '@': add --before-at to fill "
        "their rows",
    ]
    after, said = canvas.fill(before, COLUMN, [result(id, 42) for id in students], before_at=True)
    rows = {row[0]: row[5] for row in csv.reader(io.StringIO(after.decode(), newline=""))}
    assert [name for name in rows if rows[name] == "42"] == ["A", "B", "D"][:count]
    assert f"matched by the part before '@': {students[0]} belongs to A" in said
    left = students[count:]
    assert f"no row in the gradebook: {', '.join(left)}" in said


def test_two_students_never_share_a_row_by_the_part_before_the_at_sign():
    people = [("A", 1, "", "ada@uni.edu", "", "")]
    documents = [result("ada@x.org", 42), result("ada@y.org", 43)]
    assert canvas.fill(gradebook(people), COLUMN, documents, before_at=True)[0] == gradebook(people)
    documents = [result("ada@uni.edu", 42), result("ada", 43)]
    after, _ = canvas.fill(gradebook(people), COLUMN, documents, before_at=True)
    assert b"ada@uni.edu,,42," in after


@pytest.mark.parametrize("cell", ["1.0327E+15", "1,0327E+15", "1E+15"])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_gradebook_saved_by_a_spreadsheet_program_is_refused_once(cell, place):
    people = [["A", 1, "", "ada", "", ""], ["B", 2, "", "bob", "", ""]]
    for person in people:
        person[place] = cell
    with pytest.raises(CannotExport) as error:
        canvas.fill(gradebook(people), COLUMN, [result("ada"), result("bob")])
    said = str(error.value)
    column = ("ID", "SIS User ID", "SIS Login ID")[place - 1]
    assert f"rounded 2 ids in the gradebook's column '{column}'" in said
    assert f"(for example {cell})" in said and "export the gradebook from Canvas again" in said
