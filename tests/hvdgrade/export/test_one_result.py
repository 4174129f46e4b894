"""A single result in the formats of platforms: it fits the platform's rules, and a fault is never a zero."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import junitparser
import pytest

from hvdgrade import cli
from hvdgrade.export import classroom50, command, gradescope, junit, prairielearn
from hvdgrade.result_document import read

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = ("pass", "fail", "hang", "not_gradable", "grader_fault")
RESULTS = {name: read((FIXTURES / "results" / f"{name}.json").read_bytes()) for name in NAMES}
GRADED = NAMES[:3]
# Format -> exit code for each of NAMES.
CODES = {
    "gradescope": (0, 0, 0, 0, 1),
    "prairielearn": (0, 0, 0, 0, 1),
    "classroom50": (0, 0, 0, 1, 1),
    "junit": (0, 0, 0, 0, 3),
}
RUNNER = {  # what Classroom 50's runner adds
    "classroom": "dl", "assignment": "cifar", "assignment_type": "individual", "owner": "ada",
    "submission": "submit/2026-09-01T12-00-00Z-a1b2c3d", "commit": "c", "release": "r", "review": "v",
    "datetime": "2026-09-01T12:00:00Z",
}  # fmt: skip


def fits(payload: dict, platform: str) -> dict:
    """Check a payload by the platform's schema, and return it."""
    schema = json.loads((FIXTURES / "platforms" / f"{platform}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(json.dumps(payload, allow_nan=False)), schema)
    return payload


@pytest.fixture
def export(capfd) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs `hvdgrade export`: exit code, stdout, stderr."""

    def run(result: Path, format: str, *arguments: object) -> tuple[int, str, str]:
        code = cli.main(["export", str(result), "--format", format, *map(str, arguments)])
        return code, *capfd.readouterr()

    return run


@pytest.mark.parametrize("format", CODES)
@pytest.mark.parametrize("name", NAMES)
def test_the_file_and_the_exit_code_say_what_happened(format, name, tmp_path, export):
    output = tmp_path / "out"
    path = FIXTURES / "results" / f"{name}.json"
    code, printed, said = export(path, format, "--output", output)
    payload = command.FORMATS[format].payload(RESULTS[name])
    assert code == CODES[format][NAMES.index(name)], said
    assert output.exists() == (payload is not None) and printed == ""
    if name not in GRADED:
        assert RESULTS[name]["reason"] in said
    content = output.read_text() if output.exists() else ""
    assert export(path, format)[:2] == (code, content)


@pytest.mark.parametrize("name", GRADED)
def test_gradescope_gets_the_points_of_each_check(name):
    payload = fits(gradescope.payload(RESULTS[name]), "gradescope")
    assert payload["score"] == RESULTS[name]["score"] == sum(t["score"] for t in payload["tests"])


def test_gradescope_gets_no_points_and_the_reason_where_nothing_was_graded():
    payload = fits(gradescope.payload(RESULTS["not_gradable"]), "gradescope")
    [failed] = payload["tests"]
    assert failed["status"] == "failed" and (failed["score"], failed["max_score"]) == (0, 0)
    assert failed["output"] == RESULTS["not_gradable"]["reason"] and "score" not in payload
    assert gradescope.payload(RESULTS["grader_fault"]) is None


@pytest.mark.parametrize("name, score", [("pass", 1), ("fail", 0.55), ("hang", 0)])
def test_prairielearn_gets_a_fraction_and_the_points_of_each_check(name, score):
    payload = fits(prairielearn.payload(RESULTS[name]), "prairielearn")
    assert payload["score"] == score and payload["gradable"]
    checks = RESULTS[name]["checks"]
    assert [test["points"] for test in payload["tests"]] == [check["points"] for check in checks]
    partial = RESULTS[name] | {"score": 30, "max_score": 90}
    assert fits(prairielearn.payload(partial), "prairielearn")["score"] == 0.3333


def test_prairielearn_loses_no_attempt_where_nothing_was_graded():
    payload = fits(prairielearn.payload(RESULTS["not_gradable"]), "prairielearn")
    assert payload == {"gradable": False, "format_errors": [RESULTS["not_gradable"]["reason"]]}
    assert prairielearn.payload(RESULTS["grader_fault"]) is None


@pytest.mark.parametrize("name", GRADED)
def test_classroom50_gets_whole_points_that_add_up(name):
    payload = fits(classroom50.payload(RESULTS[name]) | RUNNER, "classroom50")
    tests = payload["tests"]
    assert payload["score"] == RESULTS[name]["score"] == sum(test["score"] for test in tests)
    assert payload["max-score"] == 100 and all(t["score"] <= t["max-score"] for t in tests)
    states = [check["state"] for check in RESULTS[name]["checks"]]
    assert [test["passed"] for test in tests] == [state == "pass" for state in states]


def test_classroom50_rounds_partial_points():
    document = json.loads(json.dumps(RESULTS["fail"]))
    document["checks"][4]["points"] = 4.6
    payload = fits(classroom50.payload(document) | RUNNER, "classroom50")
    assert payload["tests"][4]["score"] == 5 and not payload["tests"][4]["passed"]
    for name in NAMES[3:]:
        assert classroom50.payload(RESULTS[name]) is None


@pytest.mark.parametrize("name", NAMES)
def test_another_reader_of_junit_sees_every_check(name):
    document = RESULTS[name]
    report = junitparser.JUnitXml.fromstring(junit.payload(document).encode())
    [suite] = report
    outcomes = [type(case.result[0]).__name__ if case.result else "passed" for case in suite]
    words = {"pass": "passed", "partial": "Failure", "fail": "Failure", "skipped": "Skipped"}
    expected = [words[check["state"]] for check in document["checks"]] or ["Error"]
    assert outcomes == expected
    assert (suite.tests, suite.failures) == (len(expected), expected.count("Failure"))
    assert (suite.errors, suite.skipped) == (expected.count("Error"), expected.count("Skipped"))
    for case, check in zip(suite, document["checks"], strict=False):
        assert case.name == check["title"]
        if case.result:
            assert case.result[0].message == check["rationale"]
            assert (case.result[0].text or "") == check["help"]
    if name not in GRADED:
        assert next(iter(suite)).result[0].text == document["reason"]


def test_text_of_a_submission_cannot_break_a_report():
    document = json.loads(json.dumps(RESULTS["fail"]))
    nasty = '\x00\x1b[2J</failure><testcase name="x"/>]]>\ud800&\u202e'
    for check in document["checks"]:
        check |= {"rationale": nasty, "help": nasty}
    [suite] = junitparser.JUnitXml.fromstring(junit.payload(document).encode())
    assert len(list(suite)) == len(document["checks"])
    for payload in (prairielearn.payload(document), classroom50.payload(document)):
        text = json.dumps(payload, ensure_ascii=False)
        text.encode()  # no half of a surrogate pair
        assert "\\u0000" not in text and "\\u001b" not in text and "\u202e" not in text
    for status in NAMES[3:]:
        junitparser.JUnitXml.fromstring(junit.payload(RESULTS[status] | {"reason": nasty}).encode())


def test_wrong_usage_is_one_sentence(tmp_path, export):
    result = tmp_path / "result.json"
    result.write_bytes((FIXTURES / "results" / "pass.json").read_bytes())
    before = result.read_bytes()
    for arguments, sentence in (
        (("csv",), "--format csv needs the --out folder of a batch, not one result."),
        (("junit", "--output", result), "is also the result: choose another file."),
        (("junit", "--output", tmp_path / "no" / "x"), "cannot be written: No such file"),
    ):
        code, _, said = export(result, *arguments)
        assert code == 2 and sentence in said and said.count("\n") == 1
    assert result.read_bytes() == before
    result.write_text("[]")
    code, _, said = export(result, "junit")
    assert code == 2 and "is not a result of hvdgrade run --json." in said


@pytest.mark.parametrize("format, files", [("junit", 4), ("prairielearn", 3), ("classroom50", 2)])
def test_a_class_gets_a_file_per_submission(graded, format, files, export):
    code, printed, said = export(graded, format)
    assert code == 0, said
    assert len(list((graded / format).iterdir())) == files
    assert "no score, not gradable: carla" in printed
