"""Give nbgrader a score that the grader computed outside the notebook.

Requires nbgrader 0.7 or newer, because older versions turn a score of 0 into full points. Grade the class
with `hvdgrade batch` first. Then pass the scores to nbgrader in an autograded cell ("Autograder tests",
100 points) that ends with

    from pathlib import Path
    from hvdgrade.export import nbgrader_score
    nbgrader_score("/path/to/OUT", student=Path.cwd().parent.name)    # autograded/STUDENT/ASSIGNMENT

nbgrader interprets the cell as follows. If its value is a number, the number is partial credit. If it raises
an error or writes *anything* to stderr, it gives 0 points. In all other cases it gives full points. Do not
grade inside the cell, because MPI and TensorFlow write warnings to stderr. `nbgrader_score` prints nothing,
and raises `NotGraded` if there is no score. nbgrader turns that error into 0 points, so search for
`NotGraded` before you release grades.

**nbgrader runs a student's cells in the same process, so a student can replace this function or any other
function.** Compare its scores with those of `hvdgrade export OUT --format csv` before you release them.
"""

from pathlib import Path

from hvdgrade import HvdgradeError
from hvdgrade.batch import handed_in
from hvdgrade.batch.id_table import find_name, read_students
from hvdgrade.result_document import NotAResult, read


class NotGraded(HvdgradeError):
    """There is no valid score. The message says why, for example that the submission is not gradable."""


def nbgrader_score(path: Path | str, points: float = 100, student: str | None = None) -> float:
    """Return the score in a result of `hvdgrade run --json` or of `hvdgrade batch`.

    Args:
        points: maximum points of the notebook's cell. The score is scaled to it, because the maximum of
            the result is lower if a check could not run on the grader's host. Default: 100.
        student: the student's id or e-mail address, if `path` is a folder. Default: None.

    Returns:
        The score between 0 and `points`.

    Raises:
        NotGraded: `path` is not a result, the submission was not graded (not gradable, or a grader
            fault), it was a practice run on synthetic data, or the result belongs to an earlier
            submission.
    """
    if student is not None:
        name = find_name(read_students(Path(path)), student)
        if name is None:
            raise NotGraded(f"{path} has not exactly one student {student}: look at students.json.")
        path = Path(path) / "results" / f"{name}.json"
    try:
        document = read(Path(path).read_bytes())
    except (OSError, NotAResult):
        raise NotGraded(
            f"{path} is not a result of hvdgrade: grade the submission first."
        ) from None
    if document["status"] != "graded":
        raise NotGraded(f"{document['status']}: {document['reason']}")
    if handed_in.is_practice(document):
        raise NotGraded(
            f"{path} is a practice run on synthetic data: install CIFAR-10 and grade it again."
        )
    newest_sha256 = handed_in.script_sha256(Path(path).resolve().parents[1], Path(path).stem)
    if newest_sha256 not in (None, document["submission"].get("sha256")):
        raise NotGraded(f"{path} belongs to an earlier submission: run 'hvdgrade batch' again.")
    return points * document["score"] / document["max_score"]
