"""What the source of a lab, `labs/NN_name.py`, contains: its title, exercises, predictions and questions.

The source is read and not run, so this needs no framework.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from hvdlab.course import experiment

NAME = re.compile(r"(\d\d)_[a-z0-9_]+\.py")
TITLE = re.compile(r"^# # (?:Lab \d+: )?(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class LabSource:
    """What a lab contains.

    Attributes:
        exercises: ids of the exercises, in their order: the first one is exercise 1.
    """

    path: Path
    title: str
    exercises: tuple[str, ...]
    predictions: frozenset[int]
    questions: frozenset[int]

    @property
    def number(self) -> int:
        """The number of the lab."""
        return int(self.path.name[:2])


def exercise_id(lab: int, check: str, case: int | None = None) -> str:
    """Return the id of an exercise, which stays if its place in the lab changes: "lab02.gradient".

    Args:
        check: name of the function that checks it, for example "check_gradient".
        case: number of the case, if the exercise has several.
    """
    return f"lab{lab:02d}.{check.removeprefix('check_')}" + (f" {case}" if case else "")


def read(path: Path) -> LabSource:
    """Return what a lab contains."""
    text = path.read_text(encoding="utf-8")
    exercises: dict[str, int] = {}  # id -> first line
    predictions, questions = set(), set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        name = ast.unparse(node.func).rpartition(".")[2]
        if name.startswith("check_"):
            case = first if isinstance(first, int) else None
            id = exercise_id(int(path.name[:2]), name, case)
            exercises[id] = min(node.lineno, exercises.get(id, node.lineno))
        elif ast.unparse(node.func) == "workbook.predict":
            predictions.add(first)
        elif ast.unparse(node.func) == "workbook.question":
            questions.add(first)
    title = TITLE.search(text)
    return LabSource(
        path,
        title[1] if title else path.stem,
        tuple(sorted(exercises, key=exercises.get)),
        frozenset(predictions),
        frozenset(questions),
    )


def labs(folder: Path = experiment.LABS) -> list[LabSource]:
    """Return what each lab contains, in the order of the course, without the start page.

    Args:
        folder: the folder of the sources. Default: the one that this package lies in.
    """
    paths = sorted(path for path in folder.glob("*.py") if NAME.fullmatch(path.name))
    return [read(path) for path in paths if not path.name.startswith("00")]
