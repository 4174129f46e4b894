"""`hvdlab progress`: show per lab which exercises, predictions and questions a learner has done.

After the entry test it also shows which sections of labs 1 to 3 the learner can skip.
"""

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from hvdlab.course import answers_file, entry_test, lab_source
from hvdlab.course.answers_file import (
    AnswersFile,
    Entry,
    OpenedHint,
    Prediction,
    QuizAnswer,
    Result,
    SolvedExercise,
    last,
)
from hvdlab.course.lab_source import LabSource

NEAR = 0.25  # a prediction is near the result if they differ by at most this fraction of the larger one
EPILOG = """\
The notebooks write the file notebooks/work/answers.json when a check says "Right", and when you make a
prediction, answer a question or open a hint. The notebooks with the solutions do not write it.

example:
  hvdlab progress
"""


@dataclass(frozen=True)
class LabProgress:
    """How much of one lab a learner has done.

    Args:
        solved: ids of the exercises whose check said "Right".
        reasoned: number of predictions that have a reason.
        near: number of predictions that are near the result of the lab.
        answered: number of questions with an answer.
        right: number of questions with a right answer.
        hints: number of hints that are open.
    """

    lab: LabSource
    solved: frozenset[str]
    reasoned: int
    near: int
    answered: int
    right: int
    hints: int


def progress(entries: Iterable[Entry], labs: Iterable[LabSource]) -> list[LabProgress]:
    """Return the progress in each lab. What a lab does not contain any more does not count."""
    entries = list(entries)
    counted = []
    for lab in labs:
        own = [entry for entry in entries if entry.lab == lab.number]
        solved = {one.exercise for one in own if isinstance(one, SolvedExercise)}
        reasoned = {one.number for one in own if isinstance(one, Prediction) and one.reason}
        made, measured = (last(own, kind, lab.number) for kind in (Prediction, Result))
        answers = [one for one in own if isinstance(one, QuizAnswer)]
        answered = {one.number for one in answers}
        right = {one.number for one in answers if one.right}
        opened = {(one.exercise, one.number) for one in own if isinstance(one, OpenedHint)}
        counted.append(
            LabProgress(
                lab,
                frozenset(solved.intersection(lab.exercises)),
                len(reasoned & lab.predictions),
                sum(
                    is_near(made[number].value, measured[number].value)
                    for number in made.keys() & measured.keys() & lab.predictions
                ),
                len(answered & lab.questions),
                len(right & lab.questions),
                sum(exercise in lab.exercises for exercise, _ in opened),
            )
        )
    return counted


def is_near(prediction: float | str, result: float | str) -> bool:
    """Return whether a number differs little from the result (see NEAR), or a text is that of the result."""
    if isinstance(prediction, str) or isinstance(result, str):
        return str(prediction).casefold() == str(result).casefold()
    return math.isclose(prediction, result, rel_tol=NEAR)


def show(file: AnswersFile | None = None) -> None:
    """Print a table with one row per lab, and how many exercises of each level are solved.

    If the learner has done nothing yet, it prints a sentence that says so.

    Args:
        file: what the learner did. Default: the file that the notebooks write.

    Raises:
        WorkbookError: the file cannot be read.
    """
    file = file or AnswersFile(answers_file.PATH)
    entries = file.entries()
    if not entries:
        print(
            f"There is nothing in {file.path} yet. Solve an exercise, make a prediction or answer a question "
            "in a notebook, then look again."
        )
        return
    table = Table(
        caption='"3 of 5" means that you have done 3 of the 5 that the lab has. A prediction counts if it '
        f"has a reason. Near is the number of predictions that differ from the result by at most {NEAR:.0%}, "
        "or name the right choice. Right is the number of questions with a right answer, and Hints that of "
        "the hints that you opened."
    )
    table.add_column("Lab", no_wrap=True, max_width=23)
    for name in ("Exercises", "Predicted", "Near", "Right", "Hints"):
        table.add_column(name, justify="right", min_width=len(name))
    counted = progress(entries, [lab_source.read(entry_test.SOURCE), *lab_source.labs()])
    for one in counted:
        lab = one.lab
        table.add_row(
            f"{lab.number} {lab.title}",
            f"{len(one.solved)} of {len(lab.exercises)}",
            f"{one.reasoned} of {len(lab.predictions)}",
            str(one.near),
            f"{one.right} of {len(lab.questions)}",
            str(one.hints),
        )
    Console().print(table)
    print(by_level(counted))


def by_level(labs: Iterable[LabProgress]) -> str:
    """Return a line with the number of solved exercises of each level, in all labs together."""
    levels = [(id in lab.solved, level) for lab in labs for id, level in lab.lab.levels.items()]
    parts = []
    for level in lab_source.LEVELS:
        solved = [is_solved for is_solved, its_level in levels if its_level == level]
        parts.append(f"{level} {sum(solved)} of {len(solved)}")
    return f"Solved exercises by level: {', '.join(parts)}."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hvdlab progress` to its parser: it has none."""


def main(args: argparse.Namespace) -> int:
    """Run the command and return its exit code: 0, or 1 if the file of answers cannot be read."""
    try:
        show()
        if entry_test.is_answered(AnswersFile(answers_file.PATH).entries()):
            entry_test.show()
    except answers_file.WorkbookError as error:
        print(f"hvdlab: {error}", file=sys.stderr)
        return 1
    return 0
