"""Exports in all formats: golden files, round trips through an independent reader, and hostile names."""

import argparse
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
import types

import pytest
from exported import (
    COLUMN,
    FIXTURES,
    NASTY,
    export,
    keep,
    result,
    tell_handed_in,
    tell_students,
)

from hvdgrade.batch import csv_table
from hvdgrade.batch.id_table import Student
from hvdgrade.batch.results import load
from hvdgrade.export import command as export_command
from hvdgrade.export.command import doubts
from hvdgrade.report.wording import warnings_of


@pytest.mark.parametrize("format, name", [("csv", "csv.csv"), ("gradescope",) * 2])
def test_golden_files(graded, format, name):
    answer = export(graded, format)
    assert answer.returncode == 0, answer.stderr
    expected = FIXTURES / name
    files = [expected] if expected.is_file() else [p for p in expected.rglob("*") if p.is_file()]
    made = [p for p in (graded / name).rglob("*") if p.is_file()] or [graded / name]
    assert len(made) == len(files)
    for file in files:
        assert (graded / name / file.relative_to(expected)).read_bytes() == file.read_bytes()


def test_any_name_comes_back_from_the_table_and_none_is_a_formula():
    dice = random.Random(5)
    ids = {"".join(dice.choices(NASTY, k=dice.randint(1, 8))) for _ in range(2000)}
    ids |= {"x;\"=cmd|' /C calc'!A0", ';""=1+1', ";\"'=1+1", '";"@SUM(1)'}
    encoded = csv_table.table([result(id) | {"reason": id} for id in ids])
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


def test_no_other_text_is_a_formula_either():
    document = result("ada") | {"reason": "=HYPERLINK(1)"}
    document["submission"] |= {"name": "=1+1", "email": "@a", "left_out": ["-1.py", "b.txt"]}
    (head, row) = csv_table.rows([document])
    cells = dict(zip(head, row, strict=True))
    assert [cells[name] for name in ("reason", "name", "email", "left_out")] == [
        *("'=HYPERLINK(1)", "'=1+1", "'@a", "'-1.py, b.txt"),
    ]


def test_the_table_of_a_batch_is_the_same(graded):
    keep(graded, result('x;"=cmd()') | {"reason": ';"+1'})
    assert export(graded, "csv").returncode == 0
    command = [sys.executable, "-m", "hvdgrade.batch.summary", graded]
    subprocess.run(command, check=True, timeout=60)
    assert (graded / "summary.csv").read_bytes() == (graded / "csv.csv").read_bytes()


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


def test_what_an_earlier_export_left_is_named_and_stays(graded):
    format, file = "gradescope", "ada/results.json"
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


def test_who_gets_another_file_name_is_not_doubled(graded):
    """Ada was alone, and then ada came: both get files that are two on every disk."""
    for path in (graded / "results").iterdir():
        path.unlink()
    for id, name, score in (("Ada", "Ada", 40), ("Ada", "Ada~1", 90), ("ada", "ada~2", 70)):
        document = result(id, score)
        document["batch"]["name"] = name
        keep(graded, document)
    tell_students(graded, {"Ada~1": Student("Ada"), "ada~2": Student("ada")})
    said = export(graded, "csv").stdout
    with open(graded / "csv.csv", newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    scores = [tuple(row.values())[:4:3] for row in rows]
    assert scores == [("Ada", "90"), ("ada", "70")] and "no longer" not in said


EVERY_FORMAT = {
    "csv": (),
    "canvas": ("--gradebook", FIXTURES / "gradebook.csv", "--column", COLUMN),
    "classroom50": (),
    "gradescope": (),
    "junit": (),
    "prairielearn": (),
    "moodle": ("--worksheet", FIXTURES / "worksheet.csv"),
}


def test_the_tests_know_every_format():
    assert set(EVERY_FORMAT) == set(export_command.FORMATS)


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
    subprocess.run([sys.executable, "-m", "hvdgrade.batch.summary", graded], check=True, timeout=60)
    page = (graded / "index.html").read_text()
    assert all(f"<p>{line}</p>" in page for line in expected)
    assert page.count("not graded yet") == page.count("of an earlier submission") == 1


@pytest.mark.parametrize("format", EVERY_FORMAT)
def test_practice_runs_are_counted(graded, format):
    for document in load(graded):  # what a script prints does not make it one
        keep(graded, document | {"output": "synthetic"})
    assert "synthetic" not in export(graded, format, *EVERY_FORMAT[format]).stdout
    for document in load(graded):  # two of them are graded
        document["grader"]["data"] = "synthetic CIFAR-10"
        keep(graded, document)
    said = export(graded, format, *EVERY_FORMAT[format]).stdout.splitlines()
    assert said[-1] == "2 were graded on synthetic data: practice runs"


def test_a_name_does_not_paint_the_terminal(graded):
    (graded / "results" / "mallory.json").write_text(
        json.dumps(result("\x1b[2Jmallory\r\u202e", None, None, "not_gradable"))
    )
    answer = export(graded, "gradescope")
    assert "no score, not gradable: ?[2Jmallory??" in answer.stdout.splitlines()


@pytest.mark.parametrize("format, file", [("csv", "csv.csv"), ("canvas", "canvas.csv")])
def test_a_full_disk_leaves_the_earlier_export(graded, format, file):
    """Half a table would be taken for a whole one."""
    options = EVERY_FORMAT[format]
    assert export(graded, format, *options).returncode == 0
    before = {path: path.read_bytes() for path in graded.iterdir() if path.is_file()}
    assert graded / file in before
    answer = export(graded, format, *options, most_bytes=40)
    assert answer.returncode == 2 and answer.stderr.count("\n") == 1
    assert f"{file} cannot be written: File too large" in answer.stderr
    assert {path: path.read_bytes() for path in graded.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_wrong_usage_is_one_sentence(graded, tmp_path):
    own = ("--gradebook", shutil.copy(FIXTURES / "gradebook.csv", tmp_path), "--column", COLUMN)
    for folder, arguments, words in (
        (tmp_path, ("csv",), "has no results"),
        (graded, ("canvas",), "needs --gradebook"),
        (graded, ("canvas", *own, "--output", own[1]), "names the gradebook itself"),
        (graded, ("canvas", "--gradebook", tmp_path / "none", "--column", "x"), "No such file"),
        (graded, ("csv", "--output", tmp_path / "none" / "x.csv"), "No such file"),
        (graded, ("csv", "--output", "/dev/full"), "/dev/full cannot be written: No space left"),
        (graded, ("gradescope", "--output", graded / "results"), "lies where the batch writes"),
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
        assert answer.returncode == 2 and "broken.json is not a result" in answer.stderr
        assert answer.stderr.count("\n") == 1


def test_a_new_format_needs_one_module_and_one_entry(graded, monkeypatch, capsys):
    new_format = types.SimpleNamespace(
        OUTPUT="new.txt",
        add_arguments=lambda parser: parser.add_argument("--digits", type=int),
        write=lambda documents, args: [f"{args.output}: {len(documents)}, {args.digits} digits"],
    )
    monkeypatch.setitem(export_command.FORMATS, "new", new_format)
    parser = argparse.ArgumentParser()
    export_command.add_arguments(parser)
    args = parser.parse_args([str(graded), "--format", "new", "--digits", "3"])
    assert export_command.main(args) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{graded / 'new.txt'}: 4, 3 digits"
