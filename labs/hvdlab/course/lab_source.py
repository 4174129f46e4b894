"""What the source of a lab, `labs/NN_name.py`, contains: its title, exercises, predictions and questions.

A lab may have optional notebooks, `labs/NN_more_name.py`. Their exercises and predictions count as those of
the lab. The sources are read and not run, so this needs no framework.
"""

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path

from hvdlab.course import experiment

NAME = re.compile(r"(\d\d)_[a-z0-9_]+\.py")
OPTIONAL = re.compile(r"\d\d_more_[a-z0-9_]+\.py")
TITLE = re.compile(r"^# # (?:Lab \d+: )?(.+)$", re.MULTILINE)
# The heading of an exercise, and the line that says how much of the work is the learner's.
EXERCISE = re.compile(r"# ##+ (Exercise \d+.*)|# \*\*Level:\*\* ([a-z ]+)\.")
LEVELS = ("complete", "choose and justify", "blank page")


@dataclass(frozen=True)
class LabSource:
    """What a lab contains.

    Attributes:
        exercises: ids of the exercises, in their order: the first one is exercise 1. Those of optional
            notebooks are the last ones.
        levels: the level of each exercise, one of LEVELS. "complete" where its text states none.
        headings: the heading of each exercise, for example "Exercise 1: Batches", and the source that has it.
        optional: the sources of its optional notebooks.
    """

    path: Path
    title: str
    exercises: tuple[str, ...]
    levels: dict[str, str]
    headings: dict[str, tuple[str, Path]]
    predictions: frozenset[int]
    questions: frozenset[int]
    optional: tuple[Path, ...] = ()

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


def check_id(lab: int, call: ast.Call) -> str | None:
    """Return the id of the exercise that a call checks, or None if it calls no check."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if not name.startswith("check_"):
        return None
    first = _first_argument(call)
    return exercise_id(lab, name, first if isinstance(first, int) else None)


def _first_argument(call: ast.Call) -> object:
    """Return the first argument of a call if it is a constant, else None."""
    return call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None


def read(path: Path) -> LabSource:
    """Return what a lab contains."""
    text = path.read_text(encoding="utf-8")
    exercises: dict[str, int] = {}  # id -> first line
    predictions, questions = set(), set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        if id := check_id(int(path.name[:2]), node):
            exercises[id] = min(node.lineno, exercises.get(id, node.lineno))
        elif ast.unparse(node.func) == "workbook.predict":
            predictions.add(_first_argument(node))
        elif ast.unparse(node.func) == "workbook.question":
            questions.add(_first_argument(node))
    title = TITLE.search(text)
    described = _described(text)
    return LabSource(
        path,
        title[1] if title else path.stem,
        tuple(sorted(exercises, key=exercises.get)),
        {id: described[line - 1][1] for id, line in exercises.items()},
        {id: (described[line - 1][0], path) for id, line in exercises.items()},
        frozenset(predictions),
        frozenset(questions),
    )


def _described(text: str) -> list[tuple[str, str]]:
    """Return for each line the heading and the level of the exercise to which it belongs."""
    described, heading, level = [], "", LEVELS[0]
    for line in text.splitlines():
        if found := EXERCISE.match(line):
            heading, level = found[1] or heading, found[2] or LEVELS[0]
        described.append((heading, level))
    return described


def labs(folder: Path = experiment.LABS) -> list[LabSource]:
    """Return what each lab contains, in the order of the course, without the start page.

    Args:
        folder: the folder of the sources. Default: the one that this package lies in.
    """
    paths = sorted(path for path in folder.glob("*.py") if NAME.fullmatch(path.name))
    optional = [path for path in paths if OPTIONAL.fullmatch(path.name)]
    main = [path for path in paths if path not in optional and not path.name.startswith("00")]
    return [
        _with_optional(read(path), [more for more in optional if more.name[:2] == path.name[:2]])
        for path in main
    ]


def _with_optional(lab: LabSource, paths: list[Path]) -> LabSource:
    """Return a lab with the exercises and predictions of its optional notebooks."""
    parts = [lab, *map(read, paths)]
    return replace(
        lab,
        exercises=tuple(id for part in parts for id in part.exercises),
        levels={id: level for part in parts for id, level in part.levels.items()},
        headings={id: where for part in parts for id, where in part.headings.items()},
        predictions=frozenset().union(*(part.predictions for part in parts)),
        optional=tuple(paths),
    )
