"""The format `moodle` writes each score into its student's row of the grading worksheet."""

import csv
import io
import re

import pytest
from exported import export, keep, result, tell_students

from hvdgrade.batch.id_table import Student
from hvdgrade.batch.results import CannotExport, load
from hvdgrade.export import moodle

ENGLISH = (
    *("Identifier", "Full name", "Email address", "Status", "Grade", "Maximum grade"),
    *("Grade can be changed", "Last modified (grade)", "Feedback comments"),
)
GERMAN = (
    *("ID", "Vollständiger Name", "E-Mail-Adresse", "Status", "Bewertung", "Bestwertung"),
    *("Bewertung kann geändert werden", "Zuletzt geändert", "Feedback als Kommentar"),
)


def worksheet(*people: tuple, head=ENGLISH, maximum="50.00") -> bytes:
    """Return a worksheet. A person is: participant, name, e-mail address, grade[, changeable]."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for participant, name, email, grade, *changeable in people:
        row = [
            f"Participant {participant}",
            name,
            email,
            "Submitted for grading - ",
            grade,
            maximum,
        ]
        writer.writerow([*row, *(changeable or ["Yes"]), "-", '<p>"x",\ny</p>'])
    return b"\xef\xbb\xbf" + file.getvalue().encode()


def of(student: Student, score: int | None = 87, status: str = "graded") -> dict:
    """Return the result of a student."""
    document = result(student.id, score, status=status)
    document["submission"] |= {
        name: getattr(student, name) for name in ("name", "email", "platform")
    }
    return document


def grades(filled: bytes) -> list[str]:
    return [row[4] for row in csv.reader(io.StringIO(filled.decode("utf-8-sig"), newline=""))][1:]


ADA = Student("102231", "Ada Lovelace", platform="moodle")
PEOPLE = [
    ("102231", "Ada Lovelace", "ada@uni.edu", ""),
    ("102232", "Zoë O'Neil, Jr", "o'neil@uni.edu", "-"),
    ("102233", "=1+1", "bob@uni.edu", ""),
]


def test_a_row_is_found_by_the_participant_number_of_a_download():
    before = worksheet(*PEOPLE)
    after, said = moodle.fill(before, [of(ADA), of(Student("102233", "=1+1", "", "moodle"), 37)])
    assert grades(after) == ["43.5", "-", "18.5"]
    assert after.replace(b",43.5,", b",,").replace(b",18.5,", b",,") == before
    assert said == ["filled: 2", "no result: Participant 102232 Zoë O'Neil, Jr"]


@pytest.mark.parametrize(
    "student, row",
    [
        (Student("o'neil@uni.edu"), 1),
        (Student("O'Neil@Uni.edu"), 1),
        (Student("oneil", email="o'neil@uni.edu"), 1),
        (Student("102232"), 1),
        (Student("Participant 102232"), 1),
        (Student("=1+1"), 2),
        (Student("2232"), None),
        (Student("ada"), None),
        # The number of a download is a participant, and nothing else.
        (Student("o'neil@uni.edu", platform="moodle"), None),
    ],
)
def test_other_ids_are_found_in_the_columns_left_of_the_grade(student, row):
    after, said = moodle.fill(worksheet(*PEOPLE), [of(student, 100)])
    assert [n for n, grade in enumerate(grades(after)) if grade == "50"] == [row] * (
        row is not None
    )
    assert (f"no row in the worksheet: {student.id}" in said) == (row is None)


def test_a_number_that_is_two_things_is_nobodys():
    people = [*PEOPLE, ("7", "102231", "", "")]
    after, said = moodle.fill(worksheet(*people), [of(Student("102231"))])
    assert grades(after) == [person[3] for person in people]
    assert said[1].startswith(
        "several rows match 102231, so none is filled: Participant 102231 Ada"
    )


def test_a_worksheet_in_another_language_needs_the_name_of_the_column():
    before = worksheet(*PEOPLE, head=GERMAN, maximum="50,00")
    with pytest.raises(CannotExport, match="has no columns 'Grade': .*Bewertung, Bestwertung"):
        moodle.fill(before, [of(ADA)])
    after, _ = moodle.fill(before, [of(ADA)], "Bewertung")
    assert grades(after)[0] == "43.5"


@pytest.mark.parametrize("head", [ENGLISH, GERMAN])
def test_a_column_that_does_not_hold_the_grades_is_never_filled(head):
    # The same grade for all, so that it looks like a maximum.
    before = worksheet(*((*person[:3], "40.00") for person in PEOPLE), head=head)
    for column in set(head) - {"Grade", "Bewertung"}:
        with pytest.raises(CannotExport):
            moodle.fill(before, [of(ADA)], column, overwrite=True)


def test_what_must_stay_stays_and_is_named():
    people = [
        ("1", "A", "a@u", "40.00"),
        ("2", "B", "b@u", "", "No"),
        ("3", "C", "c@u", ""),
        ("4", "D", "d@u", ""),
    ]
    documents = [of(Student(f"{id}@u"), status="graded") for id in "ab"]
    documents += [
        of(Student("c@u"), None, "not_gradable"),
        of(Student("d@u"), None, "infrastructure_error"),
    ]
    after, said = moodle.fill(worksheet(*people), documents)
    assert after == worksheet(*people)
    assert said == [
        "filled: 0",
        "kept the existing grade (--overwrite replaces it): a@u",
        "the grade cannot be changed in Moodle: b@u",
        "no score, not gradable: c@u",
        "no score, grader fault: d@u",
    ]
    after, _ = moodle.fill(worksheet(*people), documents, overwrite=True)
    assert grades(after) == ["43.5", "", "", ""]


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "not a CSV"),
        (b"\xff", "the worksheet is not UTF-8: use the file as Moodle exported it."),
        (worksheet(*PEOPLE, maximum=""), "the worksheet has no 'Maximum grade' next to the grade"),
        (
            worksheet(*PEOPLE, maximum="scale"),
            "'Maximum grade', next to the grade, must be a number. Received: scale",
        ),
    ],
)
def test_what_is_no_worksheet_is_refused(content, words):
    with pytest.raises(CannotExport, match=re.escape(words)):
        moodle.fill(content, [of(ADA)])


def test_the_command_fills_a_copy_of_the_worksheet(graded, tmp_path):
    keep(graded, result("again", 60))
    names = {"ada": ADA, "carla": Student("102232", "Zoë", platform="moodle"), "again": ADA}
    tell_students(graded, {name: names[name] for name in ("ada", "carla")})
    file = tmp_path / "worksheet.csv"
    file.write_bytes(worksheet(*PEOPLE))
    assert export(graded, "moodle").stderr.endswith(
        "moodle needs --worksheet EXPORT.csv, the grading worksheet of Moodle.\n"
    )
    same = export(graded, "moodle", "--worksheet", file, "--output", file)
    assert same.returncode == 2 and "names the worksheet itself" in same.stderr
    answer = export(graded, "moodle", "--worksheet", file)
    assert answer.returncode == 0, answer.stderr
    assert grades((graded / "moodle.csv").read_bytes()) == ["50", "-", ""]
    assert file.read_bytes() == worksheet(*PEOPLE)
    said = answer.stdout.splitlines()
    assert said[1] == "filled: 1" and "no score, not gradable: 102232" in said
    assert len(load(graded)) == 5
