"""What the panel *Course* of JupyterLab shows: the labs, what the learner has done, and the next exercise."""

import re
from functools import cache

from hvdlab.course import answers_file, experiment, lab_source
from hvdlab.course.answers_file import AnswersFile, Entry, SolvedExercise
from hvdlab.course.lab_source import LabSource
from hvdlab.course.progress import progress

START = experiment.LABS / "00_start_here.py"
# A row of the table of the labs: "| [1: Why many GPUs](01_why_many_gpus.ipynb) | 85 | ..."
ROW = re.compile(r"^# \| \[(\d+): .+?\]\(.+?\) \| (\d+) \|", re.MULTILINE)


@cache
def _labs() -> list[LabSource]:
    """Return what each lab contains. Reading all of them takes a second."""
    return lab_source.labs()


@cache
def _minutes() -> dict[int, int]:
    """Return the minutes of each lab, from the table of the start page."""
    rows = ROW.findall(START.read_text(encoding="utf-8"))
    return {int(lab): int(minutes) for lab, minutes in rows}


def overview(file: AnswersFile | None = None) -> dict:
    """Return the labs with their exercises, and the id of the next exercise, as plain data for JSON.

    Args:
        file: what the learner did. Default: the file that the notebooks write.

    Raises:
        WorkbookError: the file cannot be read.
    """
    entries = (file or AnswersFile(answers_file.PATH)).entries()
    labs = [
        {
            "number": one.lab.number,
            "title": one.lab.title,
            "notebook": _notebook(one.lab.path.stem),
            "minutes": _minutes()[one.lab.number],
            "questions": len(one.lab.questions),
            "right": one.right,
            "exercises": [
                {
                    "id": id,
                    "heading": one.lab.headings[id][0] or one.lab.title,
                    "notebook": _notebook(one.lab.headings[id][1].stem),
                    "solved": id in one.solved,
                }
                for id in one.lab.exercises
            ],
        }
        for one in progress(entries, _labs())
    ]
    return {"labs": labs, "next": next_exercise(entries, _labs())}


def next_exercise(entries: list[Entry], labs: list[LabSource]) -> str | None:
    """Return the id of the first unsolved exercise after the one that was solved last.

    If all exercises after it are solved, it is the first unsolved one of the course; None if there is none.
    """
    order = [id for lab in labs for id in lab.exercises]
    solved = [one for one in entries if isinstance(one, SolvedExercise) and one.exercise in order]
    after = order.index(solved[-1].exercise) + 1 if solved else 0
    done = {one.exercise for one in solved}
    return next((id for id in [*order[after:], *order[:after]] if id not in done), None)


def _notebook(stem: str) -> str:
    """Return the name of the notebook that is made from a source."""
    return f"{stem}.ipynb"
