#!/usr/bin/env python3
"""Grade one submission in Gradescope's container, and write results/results.json last.

    run_autograder [FOLDER]          default: /autograder

Without that file Gradescope reports an autograder error. So there is none after a fault of the grader, which
must not look like a score.
"""

import json
import sys
from pathlib import Path

PLACE = Path(sys.argv[1] if len(sys.argv) > 1 else "/autograder")
KIT = PLACE / "source"
sys.path.insert(0, str(KIT))

import door  # noqa: E402


def main() -> int:
    """Grade the submission; return 0 if there is a result for Gradescope, and 1 otherwise."""
    about = PLACE / "submission_metadata.json"
    metadata = json.loads(about.read_text(encoding="utf-8"))
    (PLACE / "results").mkdir(exist_ok=True)
    # A submission may run as another user in this container.
    for path, mode in ((PLACE / "results", 0o700), (KIT, 0o700), (about, 0o600)):
        path.chmod(mode)
    user = metadata["users"][0]
    names = ", ".join(each["name"] for each in metadata["users"])
    key = f"gradescope-{metadata['id']}"
    outcome = door.grade(KIT, PLACE / "submission", user["email"].lower(), names, key)
    if outcome.code == door.NOT_GRADABLE:
        result = last_result(metadata, outcome.reason) or not_gradable(outcome.reason)
    elif outcome.text:
        result = json.loads(outcome.text)
    else:
        print(f"no result for Gradescope: {outcome.reason}", file=sys.stderr)
        return 1
    door.write(PLACE / "results" / "results.json", json.dumps(result, indent=2))
    return 0


def last_result(metadata: dict, reason: str) -> dict | None:
    """Return the student's last result that has a score, with the reason on top; None without one."""
    earlier = sorted(metadata["previous_submissions"], key=lambda one: one["submission_time"])
    for result in (one.get("results") or {} for one in reversed(earlier)):
        data = result.get("extra_data") or {}
        if data.get("status") == "graded" and "score" in result:
            said = data.get("output", result.get("output", ""))
            top = f"NOT GRADABLE: {reason}\n\nThis is the result of your last valid submission:\n{said}"
            return result | {"output": top, "extra_data": data | {"output": said}}
    return None


def not_gradable(reason: str) -> dict:
    """Return a result with a single failed test, which has no points."""
    failed = {"name": "Not gradable", "status": "failed", "score": 0, "max_score": 0}
    return {
        "output": f"NOT GRADABLE: {reason}",
        "tests": [{**failed, "output": reason, "visibility": "visible"}],
        "extra_data": {"status": "not_gradable"},
    }


if __name__ == "__main__":
    sys.exit(main())
