"""The format `gradescope`: a results.json file for Gradescope's autograder, one per submission.

The file students.json next to them says which folder belongs to which student id and e-mail address.

The file gives no maximum, because Gradescope compares the score with the points of the assignment: set the
assignment to 100 points. The exported score is always out of 100, also if the grader's maximum is lower
because a check could not run on its host. The score overrides the sum of the tests, which keep their own
points.

Source: https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

import argparse
import json

from hvdgrade.batch.id_table import student_of
from hvdgrade.batch.results import ungraded
from hvdgrade.export.payload_files import write_payloads
from hvdgrade.output import files
from hvdgrade.output.text import plain
from hvdgrade.result_document import CheckPart, ResultDocument

OUTPUT, STUDENTS = "gradescope", "students.json"
SHOWN = {
    "output_format": "text",
    "test_output_format": "text",
    "test_name_format": "text",
    "visibility": "visible",
    "stdout_visibility": "hidden",
}
# State of a check -> status of a Gradescope test.
STATUS = {"pass": "passed", "partial": "failed", "fail": "failed", "error": "failed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the format in the help text. It has no options."""
    parser.add_argument_group(
        "gradescope",
        "OUT/gradescope/NAME/results.json per submission, and students.json with the NAME of each student\n"
        "id and e-mail address. Your run_autograder script must copy the student's file to\n"
        "/autograder/results/ of the container in which Gradescope grades that submission.",
    )


def write(documents: list[ResultDocument], args: argparse.Namespace) -> list[str]:
    """Write a file per graded submission to the folder `args.output`; return lines for the instructor."""
    graded = [document for document in documents if document["status"] == "graded"]
    payloads = {document["batch"]["name"]: payload(document) for document in graded}
    messages = write_payloads(payloads, args.output, "*/results.json", ungraded(documents))
    files.write(args.output / STUDENTS, json.dumps(folders(documents), indent=2) + "\n")
    return messages


def folders(documents: list[ResultDocument]) -> dict[str, str]:
    """Return the folder of each student: id and e-mail address in lower case -> NAME.

    An id or address that two students have is left out.
    """
    names: dict[str, set[str]] = {}
    for document in documents:
        for key in student_of(document).keys if document["status"] == "graded" else ():
            names.setdefault(key.lower(), set()).add(document["batch"]["name"])
    return {key: min(found) for key, found in names.items() if len(found) == 1}


def payload(document: ResultDocument) -> dict | None:
    """Return the content of results.json, or None after a fault of the grader.

    Gradescope requires a score. A submission that is not gradable has 0 of 0 points in a single test, which
    says why. `run_autograder` of `hvdgrade platform gradescope` shows the student's last valid result
    instead.
    """
    if document["status"] == "not_gradable":
        return not_gradable(document)
    if document["status"] != "graded":
        return None
    points = f"{document['score']} of {document['max_score']} points"
    result = {
        "output": f"{document['verdict'].upper()}: {points}",
        **SHOWN,
        "tests": list(map(test, document["checks"])),
        "extra_data": {"status": document["status"], "verdict": document["verdict"]},
        "score": round(100 * document["score"] / document["max_score"], 2),
    }
    if seconds := document["resources"].get("grading_wall"):
        result["execution_time"] = round(seconds)
    result["leaderboard"] = leaderboard(document)
    return result


def not_gradable(document: ResultDocument) -> dict:
    """Return the content of results.json for a submission that is not gradable."""
    reason = plain(document["reason"])
    failed = {"name": "Not gradable", "score": 0, "max_score": 0, "status": "failed"}
    return {
        "output": f"NOT GRADABLE: {reason}",
        **SHOWN,
        "tests": [{**failed, "output": reason, "visibility": "visible"}],
        "extra_data": {"status": document["status"]},
    }


def test(check: CheckPart) -> dict:
    """Return a check as a Gradescope test. A skipped check gets no status, neither passed nor failed."""
    text = check["rationale"] + (f"\n-> {check['help']}" if check["help"] else "")
    entry = {
        "name": check["title"],
        "score": check["points"],
        "max_score": check["max_points"],
        "output": text,
        "tags": [check["id"]],
        "visibility": "visible",
        "extra_data": {"state": check["state"]},
    }
    if check["state"] in STATUS:
        entry["status"] = STATUS[check["state"]]
    return entry


def leaderboard(document: ResultDocument) -> list[dict]:
    """Return the leaderboard entries: time to the target accuracy and best held-out accuracy.

    An entry is left out if the run did not reach the target, or was not evaluated.
    """
    board = []
    if document["seconds_to_target"] is not None:
        seconds = round(document["seconds_to_target"], 1)
        board.append({"name": "Seconds to target", "value": seconds, "order": "asc"})
    accuracies = [entry["heldout_accuracy"] for entry in document["timeline"]]
    if accuracies:
        board.append({"name": "Held-out accuracy", "value": round(max(accuracies), 4)})
    return board
