"""The hints of the exercises: read from the source of a lab, and found by the cell that asks for them.

A hint is a block in the text of an exercise:

    <details><summary>Hint 1</summary> How many doublings are in the factor? </details>

The site shows it folded. The learner's notebook does not contain it (notebooks/build.py). There the function
`hint` of the workbook opens it.
"""

import ast
import html
import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from hvdlab.course import experiment
from hvdlab.course.lab_source import check_id

CALL = "# hint()  # To open the next hint, remove the first # and run this cell."
BLOCK = r"<details>\s*<summary>(?P<title>Hint.*?)</summary>(?P<text>.*?)</details>"
PART = re.compile(rf"^##+ (?P<heading>Exercise \d+)|{BLOCK}", re.MULTILINE | re.DOTALL)
REMOVED = re.compile(rf"\n*{BLOCK}", re.DOTALL)
CELL = re.compile(r"^# (?:%%|In\[)(.*)$", re.MULTILINE)  # as jupytext and as nbconvert write it
STUB = re.compile(r'# BEGIN SOLUTION|raise NotImplementedError\("Lab ')


class Cell(NamedTuple):
    """A cell of a lab."""

    is_text: bool
    source: str


class Hint(NamedTuple):
    """A hint: its title, for example "Hint 1: the idea", and its text in Markdown."""

    title: str
    text: str

    def plain(self) -> "Hint":
        """Return the hint without HTML, for a terminal."""
        code = re.sub(r"</?code>", "`", self.text)
        return Hint(self.title, html.unescape(re.sub(r"</?[a-z]+>", "", code)))


@dataclass
class Exercise:
    """The hints of an exercise, and what its cells contain.

    Attributes:
        hints: in the order in which they open.
        names: functions and classes that the learner writes in a cell of this exercise.
        checks: ids of the exercise, one for each check that its cells call.
        place: number of the cell that calls `hint`. It is the cell of the function that the learner writes,
            or else the cell of the check, because the answer may replace everything in the first one.
    """

    hints: list[Hint] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    checks: list[str] = field(default_factory=list)
    place: int | None = None

    @property
    def id(self) -> str:
        """The id of the exercise, for example "lab02.gradient"."""
        return self.checks[0]


def exercises(cells: Iterable[Cell], lab: int) -> list[Exercise]:
    """Return the exercises of a lab, with and without hints.

    Args:
        cells: the cells of its source, or of the learner's notebook before the hints are removed.
        lab: number of the lab.
    """
    found: list[Exercise] = []
    for number, cell in enumerate(cells):
        if cell.is_text:
            for part in PART.finditer(cell.source):
                if part["heading"]:
                    found.append(Exercise())
                elif found:
                    found[-1].hints.append(Hint(part["title"], part["text"].strip()))
        elif found:
            _add_code(found[-1], number, cell.source, lab)
    return [one for one in found if one.checks]


def _add_code(exercise: Exercise, number: int, source: str, lab: int) -> None:
    """Add what a code cell of an exercise defines and checks."""
    names, checks = contents(source, lab)
    if STUB.search(source) and names:
        exercise.names |= names
        exercise.place = number
    elif checks and not exercise.checks and exercise.place is None:
        exercise.place = number
    exercise.checks += checks


def contents(source: str, lab: int) -> tuple[set[str], list[str]]:
    """Return the functions and classes that a code cell defines, and the ids of the exercises it checks."""
    tree = ast.parse(source)
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return names, [id for call in calls if (id := check_id(lab, call))]


def cells(source: str) -> list[Cell]:
    """Return the cells of a lab's source, or of a notebook that was converted to a script."""
    _, *parts = CELL.split(source)
    return [
        Cell("[markdown]" in head, _text(body) if "[markdown]" in head else body)
        for head, body in zip(parts[::2], parts[1::2], strict=True)
    ]


def _text(body: str) -> str:
    """Return the Markdown of a cell without the marks of the comment."""
    return re.sub(r"^# ?", "", body, flags=re.MULTILINE)


def exercise_of(source: str, lab: int) -> Exercise | None:
    """Return the exercise to which a learner's cell belongs, or None.

    A cell belongs to an exercise if it calls its check, or defines a function that the learner writes there.

    Args:
        source: the source of the cell.
        lab: number of the lab.
    """
    names, checks = contents(source, lab)
    every = [
        one for path in _sources(lab) for one in exercises(cells(path.read_text("utf-8")), lab)
    ]
    by_check = (one for one in every if set(checks) & set(one.checks))
    by_name = (one for one in every if names & one.names)
    return next(by_check, None) or next(by_name, None)


def _sources(lab: int) -> list[Path]:
    """Return the source of a lab, and those of its optional notebooks."""
    return sorted(experiment.LABS.glob(f"{lab:02d}_*.py"))


def cell_source(frame: FrameType) -> str:
    """Return the source of the cell that runs in a frame. In a script it is the part between two marks."""
    lines = linecache.getlines(
        frame.f_code.co_filename
    )  # IPython keeps the source of each cell there
    before, after = "".join(lines[: frame.f_lineno]), "".join(lines[frame.f_lineno :])
    return CELL.split(before)[-1] + CELL.split(after)[0]


def without_hints(text: str) -> str:
    """Return the text of an exercise without its hints."""
    return REMOVED.sub("", text).strip("\n")
