"""Fill a column of Canvas or Moodle with the percentage of exercises that each learner solved."""

from collections.abc import Sequence

from hvdgrade.export import canvas, moodle
from hvdgrade.labs.class_progress import LearnerProgress
from hvdgrade.labs.page import exercises_of, solved_of
from hvdgrade.result_document import ResultDocument


def documents(class_: Sequence[LearnerProgress]) -> list[ResultDocument]:
    """Return the learners who have a file as results, as the exports of gradings take them."""
    return [
        {
            "submission": {
                "id": one.learner.student.id,
                "name": one.learner.student.name,
                "email": one.learner.student.email,
                "platform": one.learner.student.platform,
            },
            "status": "graded",
            "score": solved_of(one),
            "max_score": exercises_of(one),
            "batch": {"name": one.learner.student.id},
        }
        for one in class_
        if not one.learner.problem
    ]


def filled(
    platform: str,
    exported: bytes,
    column: str | None,
    class_: Sequence[LearnerProgress],
    overwrite: bool,
) -> tuple[bytes, list[str]]:
    """Return the platform's file with scores, scaled to the points of the column, and lines about it.

    Args:
        platform: "canvas" or "moodle".
        exported: the gradebook of Canvas, or the grading worksheet of Moodle.
        column: the column to fill. None: the column "Grade" of Moodle.

    Raises:
        CannotExport: the file or the column cannot be used.
    """
    results = documents(class_)
    if platform == "canvas":
        return canvas.fill(exported, column or "", results, overwrite)
    return moodle.fill(exported, results, column or moodle.GRADE, overwrite)
