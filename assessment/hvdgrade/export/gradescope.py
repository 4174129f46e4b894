"""results.json as Gradescope's harness reads it, one for each submission.

https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

STATUS = {"pass": "passed", "partial": "failed", "fail": "failed", "error": "failed"}


def payload(document: dict) -> dict:
    """The document for Gradescope. Without a score Gradescope shows the output and gives no points."""
    result = {
        "output": headline(document),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [],
        "extra_data": {"status": document["status"], "verdict": document["verdict"]},
    }
    if document["status"] != "graded":
        return result
    result |= {"score": document["score"], "tests": list(map(test, document["checks"]))}
    if seconds := document["resources"].get("grading_wall"):
        result["execution_time"] = round(seconds)
    result["leaderboard"] = leaderboard(document)
    return result


def headline(document: dict) -> str:
    if document["status"] == "graded":
        return (
            f"{document['verdict'].upper()}: {document['score']} of {document['max_score']} points"
        )
    if document["status"] == "not_gradable":
        return f"Not gradable, no attempt lost: {document['reason']}"
    return (
        "The grader failed; this is not your fault and no zero. Your instructor will run it again."
    )


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
