"""The format `canvas` writes each score into its student's row of an exported gradebook."""

import csv
import io
import random
import re
import unicodedata

import pytest
from exported import COLUMN, FIXTURES, NASTY, export, gradebook, keep, result, tell_handed_in

from hvdgrade.batch.results import CannotExport
from hvdgrade.export import canvas


def test_golden_gradebook(graded):
    before = (FIXTURES / "gradebook.csv").read_bytes()
    answer = export(graded, "canvas", "--gradebook", FIXTURES / "gradebook.csv", "--column", COLUMN)
    assert answer.returncode == 0, answer.stderr
    assert (graded / "canvas.csv").read_bytes() == (FIXTURES / "canvas.csv").read_bytes()
    assert (FIXTURES / "gradebook.csv").read_bytes() == before
    said = answer.stdout.splitlines()[1:]
    assert said == (FIXTURES / "canvas.txt").read_text().splitlines()


def test_the_golden_gradebook_differs_only_in_its_cells():
    read = {}
    for name in ("gradebook.csv", "canvas.csv"):
        with open(FIXTURES / name, newline="", encoding="utf-8-sig") as file:
            read[name] = list(csv.reader(file))
    at = read["gradebook.csv"][0].index(COLUMN)
    differing = {
        (row[0], place, new)
        for row, changed in zip(*read.values(), strict=True)
        for place, (old, new) in enumerate(zip(row, changed, strict=True))
        if old != new
    }
    assert {place for _, place, _ in differing} == {at}
    # ada by her login, bob by the id in the name of the file that Canvas gave the instructor
    assert {(name, new) for name, _, new in differing} == {
        ("Lovelace, Ada", "50"),
        ("Bob Smith", "18.5"),
    }


def test_every_byte_but_the_score_stays():
    dice = random.Random(11)
    for _ in range(300):
        people, documents = [], []
        end = dice.choice(["\r\n", "\n"])
        # Python 3.11 writes a lone carriage return without quotes where lines end otherwise.
        alphabet = [c for c in NASTY if "\r" in end or "\r" not in c]
        for number in range(dice.randint(1, 6)):
            name, section = (
                "".join(dice.choices(alphabet, k=dice.randint(0, 6))) for _ in range(2)
            )
            people.append((name, 900 + number, "", f"login{number}", section, ""))
            documents.append(result(f"login{number}", score=31 + number))
        before = gradebook(
            people,
            quoting=dice.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
            lineterminator=end,
            delimiter=dice.choice(",;"),
        )
        before = dice.choice([b"", b"\xef\xbb\xbf"]) + before
        if dice.random() < 0.3:
            before = before.rstrip(b"\r\n")
        dice.shuffle(documents)
        # Scores that stand nowhere else in the file: without them it must be the old file again.
        after, said = canvas.fill(before, COLUMN, documents)
        assert said == [f"filled: {len(people)} (of 100 points)"]
        restored = after
        for number in range(len(people)):
            empty = b'""' if b'"A"' in before else b""
            restored, count = re.subn(rb'(?<=[,;])%d(?=[,;]"?A)' % (31 + number), empty, restored)
            assert count == 1
        assert restored == before


def test_students_are_matched_by_login_sis_id_or_id():
    people = [
        ("A", 1, "s1", "ada", "", ""),
        ("B", 2, "eve", "bob", "", ""),
        ("C", 3, "s3", "", "", ""),
        ("D", 4, "", "", "", ""),
        ("E", 5, "", "", "", ""),
        ("Student, Test", 6, "", "x", "", ""),
        ("F", 7, "", "shared", "", ""),  # one login in two rows: it is nobody's
        ("G", 8, "", "shared", "", ""),
        ("H", 9, "s9", "7701", "", ""),  # an id that is somebody else's login
        ("I", 7701, "s10", "ivy", "", ""),
    ]
    documents = [result(id, 10 + n) for n, id in enumerate(["ada", "s3", "4", "mia_LATE_5_77_x"])]
    documents += [result("shared", 99), result("7701", 99)]
    after, said = canvas.fill(gradebook(people), COLUMN, [*documents, result("nobody")])
    rows = {row[0]: row[5] for row in csv.reader(io.StringIO(after.decode(), newline=""))}
    assert [rows[name] for name in "ABCDEFGHI"] == ["10", "", "11", "12", "13", "", "", "", ""]
    assert said[1:5] == [
        "matched only by the user id in its name: mia_LATE_5_77_x belongs to E",
        "several rows match shared, so none is filled: F; G",
        "several rows match 7701, so none is filled: H; I",
        "no row in the gradebook: nobody",
    ]
    assert said[5:] == [f"no result: {name}" for name in "BFGHI"]


@pytest.mark.parametrize("cell", ["5", "", "-"])
def test_a_student_may_have_the_name_of_a_row_of_points(cell):
    people = [("A", 1, "", "ada", "", ""), ("Points Possible, Jr", 2, "", "bob", "", cell)]
    after, said = canvas.fill(gradebook(people), COLUMN, [result("ada", 43)])
    assert b"ada,,43," in after and said[0] == "filled: 1 (of 100 points)"


@pytest.mark.parametrize(
    "cell, points",
    [
        *(("20", 20), ("20.00", 20), ("20,00", 20), (" 12,5 ", 12.5), ("1.000,50", 1000.5)),
        *(("1,000.50", 1000.5), ("", None), ("0,00", 0)),
        *((wrong, CannotExport) for wrong in ("twenty", "nan", "-5", "20 points", "inf", ".")),
    ],
)
def test_points_possible_are_read_as_canvas_reads_them(cell, points):
    before = gradebook([("A", 1, "", "ada", "", "")], delimiter=";")
    before = before.replace(b";100.00;", f";{cell};".encode())
    if points is CannotExport:
        with pytest.raises(CannotExport, match=re.escape(f"Received: {cell}")):
            canvas.fill(before, COLUMN, [result("ada", 80)])
        return
    after, said = canvas.fill(before, COLUMN, [result("ada", 80)])
    assert said[0] == "filled: 1" + (f" (of {points:g} points)" if points else "")
    (row,) = [row for row in csv.reader(after.decode().splitlines(), delimiter=";") if "ada" in row]
    assert row[5] == f"{0.8 * (points or 100):g}"


@pytest.mark.parametrize("score, cell", [(90, "100"), (0, "0"), (45, "50"), (37, "41.11")])
def test_a_score_is_of_the_columns_points_where_a_check_does_not_count(score, cell):
    people = [("Lovelace, Ada", 1, "", "ada", "", "")]
    after, _ = canvas.fill(gradebook(people), COLUMN, [result("ada", score, 90)])
    assert after == gradebook([(*people[0][:-1], cell)])


def test_a_gradebook_may_have_two_columns_for_the_name():
    people = [("A", 1, "", "ada", "", ""), ("B", 2, "", "bob", "", ""), ("Student", 3, *[""] * 4)]
    before = gradebook(people).replace(b"Student,ID", b"LastName,FirstName,ID")
    before = before.replace(b"Points Possible,", b"Points Possible,,").replace(b"A,1", b"A,Ann,1")
    before = before.replace(b"B,2", b"B,Bo,2").replace(b"Student,3", b"Student,Test,3")
    after, said = canvas.fill(before, COLUMN, [result("ada", 87)])
    assert after == before.replace(b"ada,,,", b"ada,,87,")
    assert said == ["filled: 1 (of 100 points)", "no result: B, Bo"]


def test_a_score_that_is_there_is_kept_unless_asked():
    people = [("A", 1, "", "ada", "", "7.5"), ("B", 2, "", "bob", "", "3")]
    documents = [result("ada", 40), result("bob", 41)]
    after, said = canvas.fill(gradebook(people), COLUMN, documents)
    assert after == gradebook(people)
    assert [line for line in said if "kept" in line and "--overwrite" in line] == said[1:]
    after, _ = canvas.fill(gradebook(people), COLUMN, documents, overwrite=True)
    people = [("A", 1, "", "ada", "", "40"), ("B", 2, "", "bob", "", "41")]
    assert after == gradebook(people)


@pytest.mark.parametrize("overwrite", [False, True])
def test_who_is_excused_stays_so(overwrite):
    people = [("A", 1, "", "ada", "", "EX"), ("B", 2, "", "bob", "", "ex")]
    documents = [result("ada", 40), result("bob", 41)]
    after, said = canvas.fill(gradebook(people), COLUMN, documents, overwrite)
    assert after == gradebook(people)
    assert said[1:] == ["excused in Canvas: ada", "excused in Canvas: bob"]


def test_what_has_no_score_stays_empty_and_is_named():
    people = [("A", 1, "", "ada", "", ""), ("B", 2, "", "bob", "", "")]
    documents = [
        result("ada", None, None, "not_gradable"),
        result("bob", None, None, "infrastructure_error"),
    ]
    after, said = canvas.fill(gradebook(people), COLUMN, documents, overwrite=True)
    assert after == gradebook(people)
    assert said[1:] == ["no score, not gradable: ada", "no score, grader fault: bob"]


def test_a_broken_row_is_left_as_it_is_and_named():
    before = gradebook([("A", 1, "", "ada", "", "")]).replace(b",A\r\n", b",A,\r\n")
    after, said = canvas.fill(before, COLUMN, [result("ada")])
    assert after == before and "row 3 has 8 cells instead of 7: left unchanged" in said


def test_two_results_for_one_row_fill_neither():
    people = [("A", 1, "", "ada", "", "")]
    after, said = canvas.fill(gradebook(people), COLUMN, [result("ada", 1), result("1", 2)])
    assert after == gradebook(people) and said[1] == "several results for A: ada, 1; none is used"


@pytest.mark.slow
def test_of_several_results_for_one_row_the_one_that_is_handed_in_counts(graded):
    first, again = (f"bobsmith_4002_{number}_assessment" for number in (9917, 9955))
    keep(graded, result(again, 60))
    gradebook = ("--gradebook", FIXTURES / "gradebook.csv", "--column", COLUMN)
    for names, score, said in (
        (["ada", again], "30", f"superseded by {again}: {first}"),
        (["ada", first], "18.5", f"superseded by {first}: {again}"),
        (
            ["ada", first, again],
            "",
            f"several results for Bob Smith: {first}, {again}; none is used",
        ),
        (["ada"], "", f"several results for Bob Smith: {first}, {again}; none is used"),
        ([], "", f"several results for Bob Smith: {first}, {again}; none is used"),
    ):
        tell_handed_in(graded, *names)
        answer = export(graded, "canvas", *gradebook)
        assert said in answer.stdout.splitlines()
        with open(graded / "canvas.csv", newline="", encoding="utf-8-sig") as file:
            (bob,) = [row for row in csv.reader(file) if row[0] == "Bob Smith"]
        assert bob[6] == score


def downloaded(name: str, user: int, late: bool = False, file: str = "assessment") -> str:
    """What Canvas's "Download Submissions" calls a file, as its lib/content_zipper.rb puts it together."""
    name = re.sub(r"_(\d+)_", r"\1", name).lower()
    who = "_".join([name, *["LATE"] * late, str(user)])
    return re.sub(r"\W", "", who) + f"_9917_{file}"


PEOPLE = {
    4001: "Lovelace, Ada",
    4002: "bob_smith",
    4003: "mallory_4001-_7",
    4004: "Lovelace, Ada_4001-_7",
    4005: "O'Neil, Zoë",
    4006: "Straße_12_, Eve",
}


@pytest.mark.parametrize(
    "id, user",
    [
        *((downloaded(name, user), user) for user, name in PEOPLE.items() if user != 4004),
        *((downloaded(name, user, True), user) for user, name in PEOPLE.items() if user != 4004),
        ("mallory_4001_7_4003_9917_assessment", 4003),
        (downloaded("bob_smith", 4002, file="2_solution"), 4002),
        (unicodedata.normalize("NFD", downloaded("O'Neil, Zoë", 4005, file="2_a")), 4005),
        (downloaded("The Team", 4005), 4005),  # of a group: its name is in no row
        # What fits two rows, or none, fills none.
        (downloaded(PEOPLE[4004], 4004), None),
        (downloaded("mallory_4001-_7", 4009), None),
        (downloaded("The Team", 4005, file="2_solution"), None),
        # Of an anonymous assignment: no id of Canvas's, and one of the student's choice.
        ("anon_aB3dE_9917_x_4001_7", None),
        ("LATE_anon_aB3dE_9917_4001_7", None),
        (" ", None),
    ],
)
def test_numbers_in_a_name_are_nobodys_id(id, user):
    people = [(name, number, "", f"login{number}", "", "") for number, name in PEOPLE.items()]
    after, said = canvas.fill(gradebook(people), COLUMN, [result(id, 42)])
    rows = csv.reader(io.StringIO(after.decode(), newline=""))
    assert [int(row[1]) for row in rows if row[5] == "42"] == [user] * (user is not None)
    assert (f"no row in the gradebook: {id}" in said) == (user is None)


def test_a_name_that_ends_in_numbers_is_no_download():
    people = [("Lovelace, Ada", 12, "", "ada", "", "")]
    after, said = canvas.fill(gradebook(people), COLUMN, [result("team_12_2", 55)])
    assert after == gradebook(people) and "no row in the gradebook: team_12_2" in said


def test_whose_name_is_not_the_rows_is_told():
    """A file of a group, or something else that looks like one."""
    people = [(name, number, "", f"login{number}", "", "") for number, name in PEOPLE.items()]
    theirs, own = downloaded("The Team", 4005), downloaded("bob_smith", 4002)
    _, said = canvas.fill(gradebook(people), COLUMN, [result(theirs, 42), result(own, 43)])
    told = [line for line in said if "by the user id" in line]
    assert told == [f"matched only by the user id in its name: {theirs} belongs to {PEOPLE[4005]}"]


def test_a_short_name_does_not_hide_that_a_file_is_of_somebody_else():
    people = [("L, A", 12, "", "ada", "", "")]
    _, said = canvas.fill(gradebook(people), COLUMN, [result("lab_12_2_mallory", 100)])
    assert "matched only by the user id in its name: lab_12_2_mallory belongs to L, A" in said


def test_logins_are_the_same_in_capitals():
    people = [("Ada", 12, "", "Ada@Uni.edu", "", ""), ("B", 13, "", "bob", "", "")]
    people += [("C", 14, "", "BOB", "", "")]
    documents = [result("ada@uni.edu", 42), result("bob", 43), result("Bob", 44)]
    after, said = canvas.fill(gradebook(people), COLUMN, documents)
    rows = {row[0]: row[5] for row in csv.reader(io.StringIO(after.decode(), newline=""))}
    assert [rows[name] for name in ("Ada", "B", "C")] == ["42", "43", ""]
    assert "matched without regard to upper and lower case: ada@uni.edu belongs to Ada" in said
    assert "several rows match Bob, so none is filled: B; C" in said


def test_a_column_without_points_is_told():
    people = [("Ada", 12, "", "ada", "", "")]
    for points, told in (("100.00", False), ("", False), ("0", True), ("0,00", True)):
        before = gradebook(people).replace(b"100.00", f'"{points}"'.encode())
        after, said = canvas.fill(before, COLUMN, [result("ada", 87)])
        assert b",87," in after
        assert any("gives 0 points: scores are not scaled" in s for s in said) == told


@pytest.mark.parametrize(
    "name, user, found",
    [("bob_smith", 4002, [4002]), ("mallory_4001-_7", 4003, []), ("_4001-_7", 4003, [])],
)
def test_without_names_only_a_single_number_is_an_id(name, user, found):
    people = [("", number, "", f"login{number}", "", "") for number in PEOPLE]
    before = gradebook(people).replace(b"Student,ID", b"LastName,FirstName,ID")
    before = before.replace(b"\r\n,", b"\r\n,,").replace(b"Possible,", b"Possible,,")
    after, _ = canvas.fill(before, COLUMN, [result(downloaded(name, user), 42)])
    rows = csv.reader(io.StringIO(after.decode(), newline=""))
    assert [int(row[2]) for row in rows if row[6] == "42"] == found


def test_a_name_in_two_columns_is_that_of_a_download():
    people = [("", number, "", f"login{number}", "", "") for number in (4001, 4002)]
    before = gradebook(people).replace(b"Student,ID", b"LastName,FirstName,ID")
    before = before.replace(b"Possible,", b"Possible,,").replace(b",4001", b"Lovelace,Ada,4001")
    before = before.replace(b"\r\n,4002", b"\r\nSmith,Bob,4002")
    files = [downloaded("Lovelace, Ada", 4001), downloaded("Smith, Bob", 4002, file="2_solution")]
    after, said = canvas.fill(before, COLUMN, [result(file, 42) for file in files])
    assert said == ["filled: 2 (of 100 points)"]


def test_no_name_leads_to_another_students_row():
    dice = random.Random(17)
    pieces = ["ada", "7", "4001", "4002", "_", "-", ", ", "é", " ", "LATE"]
    found = 0
    for _ in range(300):
        names = ["a" + "".join(dice.choices(pieces, k=dice.randint(1, 7))) for _ in range(3)]
        people = [(name, 4001 + n, "", "", "", "") for n, name in enumerate(names)]
        for n, name in enumerate(names):
            file = "".join(dice.choices(pieces, k=3))
            id = downloaded(name, 4001 + n, dice.random() < 0.5, file)
            after, _ = canvas.fill(gradebook(people), COLUMN, [result(id, 42)])
            rows = csv.reader(io.StringIO(after.decode(), newline=""))
            filled = [row[1] for row in rows if row[5] == "42"]
            assert filled in ([], [str(4001 + n)]), (id, names)
            found += len(filled)
    assert found > 800  # of 900


def test_a_column_that_canvas_does_not_import_is_refused():
    before = gradebook([("A", 1, "", "ada", "", "")]).replace(b",Final\r\n", b",Final (9)\r\n")
    with pytest.raises(CannotExport) as refused:
        canvas.fill(before, "Final (9)", [result("ada")])
    assert str(refused.value) == (
        "'Final (9)' is read only in Canvas: name an assignment's column."
    )


# The columns of a gradebook of Canvas that are not assignments, and an assignment without its id.
@pytest.mark.parametrize(
    "column",
    [
        *("Student", "ID", "SIS User ID", "SIS Login ID", "Integration ID", "Root Account"),
        *("Section", "Notes", "Homework Current Score", "Homework (2) Final Points"),
        *("Current Score", "Unposted Final Score", "Current Grade", "Final Grade"),
        *("Override Score", "Override Grade", "Override Status", "Essay (draft 1)", "Essay 1234"),
    ],
)
def test_a_column_that_is_no_assignment_is_never_filled(column):
    head = ["Student", "ID", "SIS Login ID", COLUMN]
    at = head.index(column) if column in head else 4
    head[at:at] = [] if column in head else [column]
    row = ["A", "1", "ada", "", ""][: len(head)]
    before = f"{','.join(head)}\r\n{','.join(row)}\r\n".encode()
    with pytest.raises(CannotExport) as refused:
        canvas.fill(before, column, [result("ada")], overwrite=True)
    assert str(refused.value) == (
        f"the gradebook has no assignment '{column}', because a number in brackets must end its "
        f"heading; its assignments are: {COLUMN}"
    )


def test_a_gradebook_without_assignments_is_refused():
    with pytest.raises(CannotExport, match="has no columns 'Essay \\(1\\)'; it has no assignment"):
        canvas.fill(b"Student,ID,Notes\r\nA,1,\r\n", "Essay (1)", [result("1")])


def test_without_the_points_of_a_column_nothing_is_scaled_and_nothing_written():
    before = gradebook([("A", 1, "", "ada", "", "")]).replace(b"Possible,", b"Possible")
    with pytest.raises(CannotExport, match="'Points Possible' has 6 cells instead of 7"):
        canvas.fill(before, COLUMN, [result("ada")])


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_title_may_hold_the_other_delimiter(delimiter):
    title = f"A{';,'.replace(delimiter, '') * 9} (1)"
    before = delimiter.join(["Student", "ID", title]) + "\r\n" + delimiter.join(["A", "7", ""])
    after, said = canvas.fill(before.encode(), title, [result("7", 42)])
    assert after.decode() == before + "42" and said == ["filled: 1"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_who_has_no_score_is_filled_and_who_is_not_assigned_never(overwrite):
    people = [("A", 1, "", "ada", "", "-"), ("B", 2, "", "bob", "", "N/A")]
    documents = [result("ada", 40), result("bob", 41)]
    after, said = canvas.fill(gradebook(people), COLUMN, documents, overwrite)
    people[0] = ("A", 1, "", "ada", "", "40")
    assert after == gradebook(people)
    assert said == [
        "filled: 1 (of 100 points)",
        "not assigned in Canvas, or its anonymous grades are not posted yet: bob",
    ]


@pytest.mark.parametrize(
    "before, words",
    [
        (b"", "not a CSV"),
        (b"Name,Points\r\nAda,3\r\n", "no columns 'Student' and 'ID'"),
        (b"Student,ID,Assignment 2 (99)\r\n", "its assignments are: Assignment 2 (99)"),
        (b'Student,ID,Assignment 1 (1234)\r\n"Ada"x,3,\r\n', "row 2"),
        (b"Student,ID,Assignment 1 (1234)\r\n\xff,3,\r\n", "not UTF-8"),
        (b"Student,ID,Assignment 1 (1234),Assignment 1 (1234)\r\n", "has 2 columns"),
    ],
)
def test_what_is_no_gradebook_is_refused(before, words):
    with pytest.raises(CannotExport, match=re.escape(words)):
        canvas.fill(before, COLUMN, [result("ada")])
