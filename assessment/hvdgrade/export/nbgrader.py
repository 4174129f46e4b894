"""A score for a notebook that nbgrader (0.7 or newer: older ones make full points of a 0) grades.

Grade the class outside of the notebooks with `hvdgrade batch`, and give nbgrader the scores in an autograded
cell ("Autograder tests", 100 points) that ends with

    from pathlib import Path
    from hvdgrade.export import nbgrader_score
    nbgrader_score(f"/path/to/OUT/results/{Path.cwd().parent.name}.json")    # autograded/STUDENT/ASSIGNMENT

What nbgrader does with the cell: a number as its value is partial credit; an error, or *anything* on
stderr, is 0 points; anything else is full points. So do not grade in the cell: the warnings of MPI and
TensorFlow go to stderr. This function prints nothing, and raises an error where there is no score.
nbgrader makes that a 0, so look for `NotGraded` before you release grades.

**nbgrader runs the cells of a student in the same process, so a student can replace this function, or any
other.** Compare its scores with those of `hvdgrade export OUT --format csv` before you release them.
"""

import json
from pathlib import Path

from hvdgrade.batch import handed_in
from hvdgrade.batch.results import is_result


class NotGraded(Exception):
    """There is no score: not gradable, the grader failed, a practice run, or there is no result yet."""


def nbgrader_score(path: Path | str, points: float = 100) -> float:
    """The score in a result of `hvdgrade run --json`, or of a batch.

    Args:
        path: the JSON file.
        points: of the notebook's cell, to which the score is scaled, whatever the result's own maximum:
            a check that a host cannot make does not count there.

    Raises:
        NotGraded: not gradable, a grader fault, a practice run on synthetic data, no result at `path`, or
            one of an earlier submission.
    """
    try:
        document = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        document = None
    if not is_result(document):
        raise NotGraded(f"{path} is no result of hvdgrade: grade the submission first.")
    if document["status"] != "graded":
        raise NotGraded(f"{document['status']}: {document['reason']}")
    if handed_in.is_practice(document):
        raise NotGraded(f"{path} is a practice run on synthetic data: grade it with CIFAR-10.")
    last = handed_in.script_sha256(Path(path).resolve().parents[1], Path(path).stem)
    if last not in (None, document["submission"].get("sha256")):
        raise NotGraded(f"{path} is of an earlier submission: run 'hvdgrade batch' again.")
    return points * document["score"] / document["max_score"]
