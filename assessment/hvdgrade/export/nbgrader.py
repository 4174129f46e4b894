"""A score for a notebook that nbgrader grades.

Grade outside of the notebook, `hvdgrade batch` or `hvdgrade run --json result.json`, and give nbgrader
the score in an autograded cell ("Autograder tests", 100 points) whose last line is

    from hvdgrade.export import nbgrader_score
    nbgrader_score("result.json")

What nbgrader does with the cell: a number as its value is partial credit; an error, or *anything* on
stderr, is 0 points; anything else is full points. So do not grade in the cell: the warnings of MPI and
TensorFlow go to stderr. This function prints nothing, and raises an error where there is no score.
nbgrader makes that a 0, so look for `NotGraded` before you release grades.
"""

import json
from pathlib import Path

from hvdgrade.export import is_result


class NotGraded(Exception):
    """There is no score: not gradable, the grader failed, or there is no result yet."""


def nbgrader_score(path: Path | str, points: float = 100) -> float:
    """The score in a result of `hvdgrade run --json`, or of a batch.

    Args:
        path: the JSON file.
        points: of the notebook's cell, to which the score is scaled, whatever the result's own maximum:
            a check that a host cannot make does not count there.

    Raises:
        NotGraded: not gradable, a grader fault, or no result at `path`.
    """
    try:
        document = json.loads(Path(path).read_text())
    except (OSError, ValueError):
        document = None
    if not is_result(document):
        raise NotGraded(f"{path} is no result of hvdgrade: grade the submission first.")
    if document["status"] != "graded":
        raise NotGraded(f"{document['status']}: {document['reason']}")
    return points * document["score"] / document["max_score"]
