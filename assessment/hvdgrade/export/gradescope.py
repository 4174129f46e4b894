"""results.json as Gradescope's harness reads it, one for each submission.

The file names no maximum: Gradescope compares its score with the points of the assignment there, so set 100.
A check that a host cannot make does not count, and all points may be 90; the score is of 100 all the same.
It stands above the sum of the tests, which keep their own points.

https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

STATUS = {"pass": "passed", "partial": "failed", "fail": "failed", "error": "failed"}


def payload(document: dict) -> dict | None:
    """The document for Gradescope; None without a score, which Gradescope does not accept."""
    if document["status"] != "graded":
        return None
    points = f"{document['score']} of {document['max_score']} points"
    result = {
        "output": f"{document['verdict'].upper()}: {points}",
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": list(map(test, document["checks"])),
        "extra_data": {"status": document["status"], "verdict": document["verdict"]},
        "score": round(100 * document["score"] / document["max_score"], 2),
    }
    if seconds := document["resources"].get("grading_wall"):
        result["execution_time"] = round(seconds)
    result["leaderboard"] = leaderboard(document)
    return result


def test(check: dict) -> dict:
    """One check as a test; one that was skipped has neither passed nor failed."""
    said = check["rationale"] + (f"\n-> {check['help']}" if check["help"] else "")
    entry = {
        "name": check["title"],
        "score": check["points"],
        "max_score": check["max_points"],
        "output": said,
        "tags": [check["id"]],
        "visibility": "visible",
        "extra_data": {"state": check["state"]},
    }
    if check["state"] in STATUS:
        entry["status"] = STATUS[check["state"]]
    return entry


def leaderboard(document: dict) -> list[dict]:
    """Time to the target (less is better) and the best held-out accuracy, as far as there are any."""
    board = []
    if document["seconds_to_target"] is not None:
        seconds = round(document["seconds_to_target"], 1)
        board.append({"name": "Seconds to target", "value": seconds, "order": "asc"})
    accuracies = [entry["heldout_accuracy"] for entry in document["timeline"]]
    if accuracies:
        board.append({"name": "Held-out accuracy", "value": round(max(accuracies), 4)})
    return board
