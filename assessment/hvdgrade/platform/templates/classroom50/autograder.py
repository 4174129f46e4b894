"""Grade one submission in a job of Classroom 50, and write result.json of the checkout last.

Its runner starts this file in the student's checkout. If it writes no result.json and exits with 1, the
runner reports an error and no score.
"""

import datetime
import json
import os
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parent
sys.path.insert(0, str(KIT))

import door  # noqa: E402

# Field of result.json -> variable that the runner sets.
FIELDS = {
    "classroom": "CLASSROOM",
    "assignment": "ASSIGNMENT",
    "assignment_type": "ASSIGNMENT_TYPE",
    "owner": "OWNER",
    "submission": "SUBMISSION_TAG",
    "commit": "COMMIT_URL",
    "release": "RELEASE_URL",
    "review": "REVIEW_URL",
}


def main() -> int:
    """Grade the submission; return 0 if there is a score, and 1 otherwise."""
    result = Path("result.json")
    result.unlink(missing_ok=True)  # the student's checkout may have one
    variables = os.environ
    key = f"github-{variables.get('GITHUB_REPOSITORY_ID')}-{variables.get('GITHUB_SHA')}"
    outcome = door.grade(KIT, Path.cwd(), "", "", key)
    if not outcome.text or outcome.code not in (0, 1):
        print(f"::error::{' '.join(outcome.reason.split())}", file=sys.stderr)
        return 1
    fields = {field: variables[name] for field, name in FIELDS.items() if variables.get(name)}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = {**json.loads(outcome.text), **fields, "datetime": now}
    found.setdefault("owner", variables.get("USERNAME"))
    found.setdefault("review", found.get("commit"))
    door.write(result, json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
