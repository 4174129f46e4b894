"""Exports: golden files, round trips through an independent reader, and hostile names."""

import csv
import io
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvdgrade.export import HANDED_IN, CannotExport, canvas, gradescope, load, lti, table

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


def result(id: str, score: int = 87, maximum: int = 100, status: str = "graded") -> dict:
    document = json.loads((FIXTURES / "results" / "ada.json").read_text())
    document["submission"]["id"] = id
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
    file = io.StringIO(newline="")
    table.write([result(id) for id in ids], file)
    encoded = file.getvalue().encode()
    rows = list(csv.reader(io.StringIO(encoded.decode("utf-8-sig"), newline="")))
    assert rows[0][0] == "student" and len(rows) - 1 == len(ids)
    cells = [row[0] for row in rows[1:]]
    assert {re.sub(r"(\A|(?<=[;\t\r\n]))'", "", cell) for cell in cells} == ids
    # Nor after what a spreadsheet of another language takes for the end of a cell.
    pieces = [piece for row in rows for cell in row for piece in re.split("[;\t\r\n]", cell)]
    assert not any(re.match(r"[=+\-@]", piece) for piece in pieces)
    assert not any(re.match(r"[\t\r\n]", cell) for row in rows for cell in row)


def test_a_reason_is_no_formula_either():
    (_, row) = table.rows([result("ada") | {"reason": "=HYPERLINK(1)"}])
    assert row[-1] == "'=HYPERLINK(1)"


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


def test_students_are_matched_by_login_then_sis_id_then_id():
    people = [
        ("A", 1, "s1", "ada", "", ""),
        ("B", 2, "ada", "bob", "", ""),  # an id that is somebody else's login
        ("C", 3, "s3", "", "", ""),
        ("D", 4, "", "", "", ""),
        ("E", 5, "", "", "", ""),
        ("Student, Test", 6, "", "x", "", ""),
    ]
    documents = [result(id, 10 + n) for n, id in enumerate(["ada", "s3", "4", "mia_LATE_5_77_x"])]
    after, said = canvas.fill(gradebook(people), COLUMN, [*documents, result("nobody")])
    rows = {row[0]: row[5] for row in csv.reader(io.StringIO(after.decode(), newline=""))}
    assert [rows[name] for name in "ABCDE"] == ["10", "", "11", "12", "13"]
    assert said[1:] == ["no row in the gradebook: nobody", "no result: B"]


@pytest.mark.parametrize(
    "cell, points",
    [
        *(("20", 20), ("20.00", 20), ("20,00", 20), (" 12,5 ", 12.5), ("1.000,50", 1000.5)),
        *(("1,000.50", 1000.5), ("", None), ("0,00", None), ("(read only)", None)),
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
    assert after == gradebook(people) and "several results for A: ada, 1" in " ".join(said)


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
    (graded / HANDED_IN).write_text("ada\nbobsmith_4002_9917_assessment\ncarla\n")
    said = export(graded, format).stdout.splitlines()
    file = graded / "results" / "_dave~b1946ac92492d234.json"
    assert said[-1] == f"no longer in DIR: =dave(); it counts until you remove {file}"
    assert sum("no longer" in line for line in said) == 1


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
    assert "2 students are not in" in answer.stdout
    assert sorted(path.name for path in (graded / "lti").iterdir()) == ["ada.json", "carla.json"]
    assert json.loads((graded / "lti" / "ada.json").read_text())["userId"] == "sub-1"


@pytest.mark.parametrize("table", [b"", b"ada;sub-1\r\n", b"ada,\r\n", b"Zo\xeb,sub-1\r\n"])
def test_what_is_no_table_of_users_is_refused(graded, tmp_path, table):
    (tmp_path / "users.csv").write_bytes(table)
    answer = export(graded, "lti", "--users", tmp_path / "users.csv")
    assert answer.returncode == 2 and answer.stderr.count("\n") == 1
    assert "must be UTF-8 with two columns separated by commas" in answer.stderr
    assert not (graded / "lti").exists()


def test_a_notebook_cell_gets_the_score_and_nothing_on_stderr():
    cell = "from hvdgrade.export import nbgrader_score; print(nbgrader_score({!r}, {}))"
    for name, points, expected in (("ada", None, "100.0"), ("bob", 20, "7.4")):
        answer = subprocess.run(
            [sys.executable, "-c", cell.format(str(FIXTURES / "results" / f"{name}.json"), points)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (answer.stdout.strip(), answer.stderr) == (expected, "")
    answer = subprocess.run(
        [sys.executable, "-c", cell.format(str(FIXTURES / "results" / "carla.json"), None)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "NotGraded: not_gradable" in answer.stderr and answer.stdout == ""


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
    ):
        answer = export(folder, *arguments)
        assert answer.returncode == 2 and words in answer.stderr, answer.stderr
        assert answer.stderr.count("\n") == 1
    (graded / "results" / "broken.json").write_text('{"submission"')
    answer = export(graded, "csv")
    assert answer.returncode == 2 and "broken.json is no result" in answer.stderr
