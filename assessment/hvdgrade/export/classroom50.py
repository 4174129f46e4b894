"""The format `classroom50`: the score and the tests of result.json of Classroom 50, in whole points.

Classroom 50's runner gives its autograder the names of the classroom and of the submission as environment
variables. `autograder.py` of `hvdgrade platform classroom50` adds them to the file.

Source: schemas/result-v1.schema.json of https://github.com/foundation50/classroom50
"""

import argparse

from hvdgrade.export.payload_files import write_each
from hvdgrade.output.text import plain
from hvdgrade.result_document import CheckPart, ResultDocument

OUTPUT = "classroom50"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the format in the help text. It has no options."""
    parser.add_argument_group(
        "classroom50",
        "OUT/classroom50/NAME.json per submission that has a score: the score and the tests of result.json",
    )


def write(documents: list[ResultDocument], args: argparse.Namespace) -> list[str]:
    """Write a file per graded submission to the folder `args.output`; return lines for the instructor."""
    return write_each(documents, payload, args.output, "*.json")


def payload(document: ResultDocument) -> dict | None:
    """Return the score and the tests, or None without a score."""
    if document["status"] != "graded":
        return None
    tests = list(map(test, document["checks"]))
    return {
        "schema": "classroom50/result/v1",
        "score": sum(each["score"] for each in tests),
        "max-score": sum(each["max-score"] for each in tests),
        "tests": tests,
    }


def test(check: CheckPart) -> dict:
    """Return a check as a test. A partial check has not passed, and keeps its points."""
    message = check["rationale"] + (f"\n-> {check['help']}" if check["help"] else "")
    return {
        "test-name": check["title"],
        "passed": check["state"] == "pass",
        "score": round(check["points"]),
        "max-score": round(check["max_points"]),
        "message": plain(message),
    }
