"""Exports: golden files, round trips through an independent reader, and hostile names."""

import csv
import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from hvdgrade.document import warnings_of
from hvdgrade.export import CannotExport, canvas, doubts, gradescope, load, lti, nbgrader, table
from hvdgrade.export.roll import HANDED_IN
from hvdgrade.roster import safe_name

FIXTURES = Path(__file__).parents[1] / "fixtures" / "export"
COLUMN = "Assignment 1 (1234)"
NASTY = [*"=+-@'\",;\t\r\n |!€é日\u202e\x1b\\", "a", "7", "=1+1", "''", '""', "\r\n"]


@pytest.fixture
def graded(tmp_path) -> Path:
    """The folder of a batch with four results."""
    shutil.copytree(FIXTURES / "results", tmp_path / "graded" / "results")
    return tmp_path / "graded"


def export(graded: Path, format: str, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "hvdgrade.cli", "export", graded, "--format", format, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def keep(graded: Path, document: dict) -> None:
    """Put a result into the folder of a batch."""
    path = graded / "results" / f"{document['batch']['name']}.json"
    path.write_text(json.dumps(document))


def result(id: str, score: int = 87, maximum: int = 100, status: str = "graded") -> dict:
    document = json.loads((FIXTURES / "results" / "ada.json").read_text())
    document["submission"]["id"] = document["batch"]["name"] = id
    return document | {"score": score, "max_score": maximum, "status": status}


# --- golden files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format, name", [("csv", "csv.csv"), ("gradescope",) * 2, ("lti",) * 2])
def test_golden_files(graded, format, name):
    answer = export(graded, format)
    assert answer.returncode == 0, answer.stderr
    expected = FIXTURES / name
    files = [expected] if expected.is_file() else [p for p in expected.rglob("*") if p.is_file()]
    made = [p for p in (graded / name).rglob("*") if p.is_file()] or [graded / name]
    assert len(made) == len(files)
    for file in files:
        assert (graded / name / file.relative_to(expected)).read_bytes() == file.read_bytes()


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
    assert {(name, new) for name, _, new in differing} == {("Lovelace, Ada", "50"), ("Bob", "18.5")}


# --- tables --------------------------------------------------------------------------------------------


def test_any_name_comes_back_from_the_table_and_none_is_a_formula():
    dice = random.Random(5)
    ids = {"".join(dice.choices(NASTY, k=dice.randint(1, 8))) for _ in range(2000)}
    ids |= {"x;\"=cmd|' /C calc'!A0", ';""=1+1', ";\"'=1+1", '";"@SUM(1)'}
    file = io.StringIO(newline="")
    table.write([result(id) | {"reason": id} for id in ids], file)
    encoded = file.getvalue().encode()
    rows = list(csv.reader(io.StringIO(encoded.decode("utf-8-sig"), newline="")))
    assert rows[0][0] == "student" and len(rows) - 1 == len(ids)
    cells = [row[0] for row in rows[1:]]
    assert {re.sub(r"""(\A|(?<=[;\t\r\n"]))'""", "", cell) for cell in cells} == ids
    # Nor after what a spreadsheet of another language takes for the end of a cell.
    pieces = [piece for row in rows for cell in row for piece in re.split("[;\t\r\n]", cell)]
    assert not any(re.match(r"[=+\-@]", piece) for piece in pieces)
    assert not any(re.match(r"[\t\r\n]", cell) for row in rows for cell in row)
    # So a spreadsheet reads the file that takes semicolons or tabs for the ends of cells.
    for delimiter in ";\t":
        text = io.StringIO(encoded.decode("utf-8-sig"), newline="")
        theirs = [cell for row in csv.reader(text, delimiter=delimiter) for cell in row]
        assert len(theirs) > len(ids)
        assert [cell for cell in theirs if re.match(r"[\t\r\n]*[=+\-@]", cell)] == []


def test_a_reason_is_no_formula_either():
    (_, row) = table.rows([result("ada") | {"reason": "=HYPERLINK(1)"}])
    assert row[-1] == "'=HYPERLINK(1)"


def test_the_table_of_a_batch_is_the_same(graded):
    keep(graded, result('x;"=cmd()') | {"reason": ';"+1'})
    assert export(graded, "csv").returncode == 0
    command = [sys.executable, "-m", "hvdgrade.summary", graded]
    subprocess.run(command, check=True, timeout=60)
    assert (graded / "summary.csv").read_bytes() == (graded / "csv.csv").read_bytes()


# --- Canvas --------------------------------------------------------------------------------------------


def gradebook(people: list[tuple], **style) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, **style)
    writer.writerow(["Student", "ID", "SIS User ID", "SIS Login ID", "Section", COLUMN, "Final"])
    writer.writerow(["    Points Possible", "", "", "", "", "100.00", "(read only)"])
    for person in people:
        writer.writerow([*person, "A"])
    return file.getvalue().encode()


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
        ("F", 7, "", "twin", "", ""),  # one login in two rows: it is nobody's
        ("G", 8, "", "twin", "", ""),
        ("H", 9, "s9", "7701", "", ""),  # an id that is somebody else's login
        ("I", 7701, "s10", "ivy", "", ""),
    ]
    documents = [result(id, 10 + n) for n, id in enumerate(["ada", "s3", "4", "mia_LATE_5_77_x"])]
    documents += [result("twin", 99), result("7701", 99)]
    after, said = canvas.fill(gradebook(people), COLUMN, [*documents, result("nobody")])
    rows = {row[0]: row[5] for row in csv.reader(io.StringIO(after.decode(), newline=""))}
    assert [rows[name] for name in "ABCDEFGHI"] == ["10", "", "11", "12", "13", "", "", "", ""]
    assert said[1:4] == [
        "several rows fit twin, none is filled: F; G",
        "several rows fit 7701, none is filled: H; I",
        "no row in the gradebook: nobody",
    ]
    assert said[4:] == [f"no result: {name}" for name in "BFGHI"]


@pytest.mark.parametrize("cell", ["5", "", "-"])
def test_a_student_may_have_the_name_of_a_row_of_points(cell):
    people = [("A", 1, "", "ada", "", ""), ("Points Possible, Jr", 2, "", "bob", "", cell)]
    after, said = canvas.fill(gradebook(people), COLUMN, [result("ada", 43)])
    assert b"ada,,43," in after and said[0] == "filled: 1 (of 100 points)"


def test_scores_that_do_not_compare_are_counted(tmp_path):
    documents = [result(name) for name in ("ada", "bob", "carla")]
    assert doubts(documents, tmp_path) == []
    grader = documents[0]["grader"]
    documents[2]["grader"] = grader | {"profile": "dli"}
    documents.append(result("dan") | {"grader": grader | {"ranks": 4}})
    rules = grader["rules_sha256"][:12]
    said = (
        f"Not all were graded in the same way: 2 with profile cpu, -np 2, rules {rules}, "
        f"1 with profile dli, -np 2, rules {rules}, 1 with profile cpu, -np 4, rules {rules}."
    )
    assert doubts(documents, tmp_path) == [said] and said in warnings_of(documents)


def test_the_exit_code_does_not_depend_on_who_reads(graded):
    command = [sys.executable, "-m", "hvdgrade.cli", "export", str(graded), "--format", "csv"]
    reader, writer = os.pipe()
    os.close(reader)
    answer = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize(
    "cell, points",
    [
        *(("20", 20), ("20.00", 20), ("20,00", 20), (" 12,5 ", 12.5), ("1.000,50", 1000.5)),
        *(("1,000.50", 1000.5), ("", None), ("0,00", None)),
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
    assert said == ["filled: 1" + (f" (of {points:g} points)" if points else "")]
    (row,) = [row for row in csv.reader(after.decode().splitlines(), delimiter=";") if "ada" in row]
    assert row[5] == f"{0.8 * (points or 100):g}"


def test_a_gradebook_may_have_two_columns_for_the_name():
    people = [("A", 1, "", "ada", "", ""), ("B", 2, "", "bob", "", ""), ("Student", 3, *[""] * 4)]
    before = gradebook(people).replace(b"Student,ID", b"LastName,FirstName,ID")
    before = before.replace(b"Points Possible,", b"Points Possible,,").replace(b"A,1", b"A,Ann,1")
    before = before.replace(b"B,2", b"B,Bo,2").replace(b"Student,3", b"Student,Test,3")
    after, said = canvas.fill(before, COLUMN, [result("ada", 87)])
    assert after == before.replace(b"ada,,,", b"ada,,87,")
    assert said == ["filled: 1 (of 100 points)", "no result: B, Bo"]


def test_a_score_that_is_there_is_kept_unless_asked():
    people = [("A", 1, "", "ada", "", "EX"), ("B", 2, "", "bob", "", "3")]
    documents = [result("ada", 40), result("bob", 41)]
    after, said = canvas.fill(gradebook(people), COLUMN, documents)
    assert after == gradebook(people)
    assert [line for line in said if "kept" in line and "--overwrite" in line] == said[1:]
    after, _ = canvas.fill(gradebook(people), COLUMN, documents, overwrite=True)
    people = [("A", 1, "", "ada", "", "40"), ("B", 2, "", "bob", "", "41")]
    assert after == gradebook(people)


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
    assert after == before and "row 3 has 8 cells instead of 7: left as it is" in said


def test_two_results_for_one_row_fill_neither():
    people = [("A", 1, "", "ada", "", "")]
    after, said = canvas.fill(gradebook(people), COLUMN, [result("ada", 1), result("1", 2)])
    assert after == gradebook(people) and said[1] == "several results for A: ada, 1; none is taken"


def tell_handed_in(out: Path, *ids: str) -> None:
    """As a batch does that found these."""
    named = {one["submission"]["id"]: one["batch"]["name"] for one in load(out)}
    (out / HANDED_IN).write_text(json.dumps({named.get(id, safe_name(id)): id for id in ids}))


def test_of_several_results_for_one_row_the_one_that_is_handed_in_counts(graded):
    first, again = (f"bobsmith_4002_{number}_assessment" for number in (9917, 9955))
    keep(graded, result(again, 60))
    gradebook = ("--gradebook", FIXTURES / "gradebook.csv", "--column", COLUMN)
    for names, score, said in (
        (["ada", again], "30", f"superseded by {again}: {first}"),
        (["ada", first], "18.5", f"superseded by {first}: {again}"),
        (["ada", first, again], "", f"several results for Bob: {first}, {again}; none is taken"),
        (["ada"], "", f"several results for Bob: {first}, {again}; none is taken"),
        ([], "", f"several results for Bob: {first}, {again}; none is taken"),
    ):
        tell_handed_in(graded, *names)
        answer = export(graded, "canvas", *gradebook)
        assert said in answer.stdout.splitlines()
        with open(graded / "canvas.csv", newline="", encoding="utf-8-sig") as file:
            (bob,) = [row for row in csv.reader(file) if row[0] == "Bob"]
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
    before = gradebook([("A", 1, "", "ada", "", "")]).replace(b",A\r\n", b",\r\n")
    with pytest.raises(CannotExport) as refused:
        canvas.fill(before, "Final", [result("ada")])
    assert str(refused.value) == ("'Final' is read only in Canvas: name an assignment's column.")


@pytest.mark.parametrize("column", ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"])
def test_a_column_that_says_who_a_student_is_stays(column):
    before = gradebook([("A", 1, "", "ada", "", "")])
    assert f",{column},".encode() in b"," + before
    with pytest.raises(CannotExport, match=re.escape(f"its assignments are: {COLUMN}")):
        canvas.fill(before, column, [result("ada")], overwrite=True)


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
        (b"", "no CSV"),
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


# --- Gradescope, LTI, nbgrader -----------------------------------------------------------------------


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
        else:
            assert payload is None
    said = export(graded, "gradescope").stdout.splitlines()
    assert said[0].endswith("gradescope: 2 files")
    assert said[1:] == ["no score, grader fault: =dave()", "no score, not gradable: carla"]


@pytest.mark.parametrize("format, file", [("gradescope", "ada/results.json"), ("lti", "ada.json")])
def test_what_an_earlier_export_left_is_named_and_stays(graded, format, file):
    assert "left by" not in export(graded, format).stdout + export(graded, format).stdout
    (graded / "results" / "ada.json").unlink()
    (graded / format / "notes.txt").touch()
    said = export(graded, format).stdout.splitlines()
    left = graded / format / file
    assert [line for line in said if line.startswith("left by")] == [
        f"left by an earlier export, remove it: {left}"
    ]
    assert left.exists()


@pytest.mark.parametrize("format", ["csv", "gradescope"])
def test_results_of_students_who_are_gone_are_named(graded, format):
    tell_handed_in(graded, "ada", "bobsmith_4002_9917_assessment", "carla")
    said = export(graded, format).stdout.splitlines()
    file = graded / "results" / "_dave~b1946ac92492d234.json"
    assert said[-1] == f"no longer in DIR: =dave(); its result stays until you remove {file}"
    assert sum("no longer" in line for line in said) == 1


EVERY_FORMAT = {
    "csv": (),
    "canvas": ("--gradebook", FIXTURES / "gradebook.csv", "--column", COLUMN),
    "gradescope": (),
    "lti": (),
}


@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_what_an_interrupted_batch_left_is_named(graded, format):
    tell_handed_in(
        graded, "ada", "carla", "eve", "bobsmith_4002_9917_assessment", "=dave()", "王小明"
    )
    (graded / "submissions").mkdir()
    for name in ("ada", "carla", "eve", "somebody"):
        (graded / "submissions" / f"{name}.py").write_text(f"# of {name}\n")
    carla = load(graded)[-1]
    assert carla["submission"]["id"] == "carla"
    carla["submission"]["sha256"] = hashlib.sha256(b"# of carla\n").hexdigest()
    keep(graded, carla)
    said = export(graded, format, *EVERY_FORMAT[format]).stdout.splitlines()
    expected = ["not graded yet: eve, 王小明", "result of an earlier submission: ada"]
    assert said[-2:] == expected
    assert sum(line.startswith(("not graded", "result of")) for line in said) == 2
    subprocess.run([sys.executable, "-m", "hvdgrade.summary", graded], check=True, timeout=60)
    page = (graded / "index.html").read_text()
    assert all(f"<p>{line}</p>" in page for line in expected)
    assert page.count("not graded yet") == page.count("of an earlier submission") == 1


@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_practice_runs_are_counted(graded, format):
    for document in load(graded):  # what a script prints does not make it one
        keep(graded, document | {"output": "synthetic"})
    assert "synthetic" not in export(graded, format, *EVERY_FORMAT[format]).stdout
    for document in load(graded):  # two of them are graded
        document["grader"]["data"] = "synthetic CIFAR-10 twin"
        keep(graded, document)
    said = export(graded, format, *EVERY_FORMAT[format]).stdout.splitlines()
    assert said[-1] == "2 were graded on synthetic data: practice runs"


def test_lti_payloads_say_what_they_know(graded, tmp_path):
    users = tmp_path / "users.csv"
    users.write_text("ada , sub-1\r\ncarla,sub-3\r\n=dave(),\r\n\r\n")
    payloads = {d["submission"]["id"]: lti.payload(d) for d in load(graded)}
    assert {id: payload["gradingProgress"] for id, payload in payloads.items()} == {
        "ada": "FullyGraded",
        "bobsmith_4002_9917_assessment": "FullyGraded",
        "carla": "Failed",
        "=dave()": "Pending",
    }
    for payload in payloads.values():
        graded_fully = payload["gradingProgress"] == "FullyGraded"
        assert ("scoreGiven" in payload) == ("scoreMaximum" in payload) == graded_fully
        assert payload["activityProgress"] == ("Completed" if graded_fully else "Submitted")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", payload["timestamp"])
    answer = export(graded, "lti", "--users", users)
    assert answer.stdout.splitlines()[1:] == [
        "no score, grader fault: =dave()",
        "no score, not gradable: carla",
        f"not in {users}: =dave()",
        f"not in {users}: bobsmith_4002_9917_assessment",
    ]
    assert sorted(path.name for path in (graded / "lti").iterdir()) == ["ada.json", "carla.json"]
    assert json.loads((graded / "lti" / "ada.json").read_text())["userId"] == "sub-1"


def test_two_results_for_one_lti_user_are_none(graded, tmp_path):
    users = tmp_path / "users.csv"
    users.write_text("ada,sub-1\nada-again,sub-1\ncarla,sub-3\n")
    keep(graded, result("ada-again", 60))
    for names, files, said in (
        (["ada-again"], ["ada-again", "carla"], "superseded by ada-again: ada"),
        (["ada"], ["ada", "carla"], "superseded by ada: ada-again"),
        (["x"], ["carla"], "several results for sub-1: ada, ada-again; none is taken"),
        (
            ["ada", "ada-again"],
            ["carla"],
            "several results for sub-1: ada, ada-again; none is taken",
        ),
    ):
        tell_handed_in(graded, *names)
        shutil.rmtree(graded / "lti", ignore_errors=True)
        assert said in export(graded, "lti", "--users", users).stdout.splitlines()
        assert sorted(path.stem for path in (graded / "lti").iterdir()) == files


def test_a_user_with_two_ids_is_refused(graded, tmp_path):
    users = tmp_path / "users.csv"
    users.write_text("ada,sub-1\ncarla,sub-3\nada,sub-1\n")
    assert export(graded, "lti", "--users", users).returncode == 0
    users.write_text("ada,sub-1\ncarla,sub-3\nada,sub-2\n")
    answer = export(graded, "lti", "--users", users)
    assert answer.returncode == 2 and answer.stderr == (
        f"hvdgrade export: {users} has two LTI user ids for ada: leave one of them.\n"
    )


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_names_are_compared_as_a_reader_does(graded, tmp_path, forms):
    ours, theirs = (unicodedata.normalize(form, "Zoë") for form in forms)
    users = tmp_path / "users.csv"
    users.write_text(f"{theirs},sub-1\n", encoding="utf-8")
    assert ours != theirs and lti.read_users(users)
    payloads, said = lti.payloads([result(ours)], users, set())
    assert [payload["userId"] for payload in payloads.values()] == ["sub-1"] and said == []
    people = [("Zoë", 1, "", theirs, "", "")]
    assert canvas.fill(gradebook(people), COLUMN, [result(ours)])[1] == [
        "filled: 1 (of 100 points)"
    ]


@pytest.mark.parametrize("table", [b"", b"ada;sub-1\r\n", b"ada,\r\n", b"Zo\xeb,sub-1\r\n"])
def test_what_is_no_table_of_users_is_refused(graded, tmp_path, table):
    (tmp_path / "users.csv").write_bytes(table)
    answer = export(graded, "lti", "--users", tmp_path / "users.csv")
    assert answer.returncode == 2 and answer.stderr.count("\n") == 1
    assert "must be UTF-8 with two columns separated by commas" in answer.stderr
    assert not (graded / "lti").exists()


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


@pytest.mark.parametrize("text", [None, '{"status"', "[]", '{"status": "graded"}'])
def test_what_is_not_graded_yet_is_no_zero_either(tmp_path, text):
    """nbgrader makes a zero of every error; by its name an instructor finds this one."""
    if text is not None:
        (tmp_path / "ada.json").write_text(text)
    with pytest.raises(nbgrader.NotGraded, match="ada.json is no result of hvdgrade"):
        nbgrader.nbgrader_score(tmp_path / "ada.json")


def test_a_name_does_not_paint_the_terminal(graded):
    (graded / "results" / "mallory.json").write_text(
        json.dumps(result("\x1b[2Jmallory\r\u202e", None, None, "not_gradable"))
    )
    answer = export(graded, "gradescope")
    assert "no score, not gradable: ?[2Jmallory??" in answer.stdout.splitlines()


# --- words for mistakes --------------------------------------------------------------------------------


def test_wrong_usage_is_one_sentence(graded, tmp_path):
    own = ("--gradebook", shutil.copy(FIXTURES / "gradebook.csv", tmp_path), "--column", COLUMN)
    for folder, arguments, words in (
        (tmp_path, ("csv",), "has no results"),
        (graded, ("canvas",), "needs --gradebook"),
        (graded, ("canvas", *own, "--output", own[1]), "names the gradebook itself"),
        (graded, ("canvas", "--gradebook", tmp_path / "none", "--column", "x"), "No such file"),
        (graded, ("csv", "--output", tmp_path / "none" / "x.csv"), "No such file"),
        (graded, ("csv", "--output", "/dev/full"), "/dev/full: No space left"),
        (graded, ("lti", "--output", graded / "results"), "lies where the batch writes"),
        (graded, ("csv", "--output", graded / "logs" / "ada.log"), "lies where the batch writes"),
    ):
        answer = export(folder, *arguments)
        assert answer.returncode == 2 and words in answer.stderr, answer.stderr
        assert answer.stderr.count("\n") == 1
    for broken in (
        '{"submission"',
        "[]",
        '{"submission": {"id": 5}, "status": "graded"}',
        '{"submission": {"id": "eve"}, "status": "graded", "score": 3, "verdict": "pass"}',
        '{"submission": {"id": "eve"}, "status": "not_gradable", "batch": null}',
    ):
        (graded / "results" / "broken.json").write_text(broken)
        answer = export(graded, "csv")
        assert answer.returncode == 2 and "broken.json is no result" in answer.stderr
        assert answer.stderr.count("\n") == 1
