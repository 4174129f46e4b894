"""The format `prairielearn`: results.json of an external grader of PrairieLearn.

The score is a fraction of the points that the checks of this grading can give. A submission that is not
gradable costs the student no attempt there. A job that writes no file counts as not gradable, too.

Source: https://prairielearn.readthedocs.io/en/latest/externalGrading/
"""

import argparse

from hvdgrade.export.payload_files import write_each
from hvdgrade.output.text import plain
from hvdgrade.result_document import CheckPart, ResultDocument

OUTPUT = "prairielearn"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the format in the help text. It has no options."""
    parser.add_argument_group(
        "prairielearn",
        "OUT/prairielearn/NAME.json per submission: results.json of an external grader",
    )


def write(documents: list[ResultDocument], args: argparse.Namespace) -> list[str]:
    """Write a file per submission to the folder `args.output`; return lines for the instructor."""
    return write_each(documents, payload, args.output, "*.json")


def payload(document: ResultDocument) -> dict | None:
    """Return the content of results.json, or None after a fault of the grader."""
    if document["status"] == "not_gradable":
        return {"gradable": False, "format_errors": [plain(document["reason"])]}
    if document["status"] != "graded":
        return None
    points = f"{document['score']} of {document['max_score']} points"
    return {
        "gradable": True,
        "score": round(document["score"] / document["max_score"], 4),
        "message": f"{document['verdict'].upper()}: {points}",
        "tests": list(map(test, document["checks"])),
    }


def test(check: CheckPart) -> dict:
    """Return a check as a test that the element pl-external-grader-results shows."""
    return plain(
        {
            "name": check["title"],
            "points": check["points"],
            "max_points": check["max_points"],
            "message": check["rationale"],
            "output": check["help"],
        }
    )
