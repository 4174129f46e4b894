"""`hvdlab progress`: show per lab which exercises, predictions and questions a learner has done.

After the entry test it also shows which sections of labs 1 to 3 the learner can skip.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from hvdlab.course import answers_file, entry_test, lab_source
from hvdlab.course.answers_file import AnswersFile, Entry, Prediction, QuizAnswer, SolvedExercise
from hvdlab.course.lab_source import LabSource

EPILOG = """\
The notebooks write the file notebooks/work/answers.json when a check says "Right", when you make a prediction
and when you answer a question. The notebooks with the solutions do not write it.

example:
  hvdlab progress
"""


@dataclass(frozen=True)
class LabProgress:
    """How much of one lab a learner has done.

    Args:
        solved: number of exercises whose check said "Right".
        reasoned: number of predictions that have a reason.
        answered: number of questions with an answer.
        right: number of questions with a right answer.
    """

    lab: LabSource
    solved: int
    reasoned: int
    answered: int
    right: int


def progress(entries: Iterable[Entry], labs: Iterable[LabSource]) -> list[LabProgress]:
    """Return the progress in each lab. What a lab does not contain any more does not count."""
    entries = list(entries)
    counted = []
    for lab in labs:
        own = [entry for entry in entries if entry.lab == lab.number]
        solved = {one.exercise for one in own if isinstance(one, SolvedExercise)}
        reasoned = {one.number for one in own if isinstance(one, Prediction) and one.reason}
        answers = [one for one in own if isinstance(one, QuizAnswer)]
        answered = {one.number for one in answers}
        right = {one.number for one in answers if one.right}
        counted.append(
            LabProgress(
                lab,
                len(solved.intersection(lab.exercises)),
                len(reasoned & lab.predictions),
                len(answered & lab.questions),
                len(right & lab.questions),
            )
        )
    return counted


def show(file: AnswersFile | None = None) -> None:
    """Print a table with one row per lab, or a sentence if the learner has done nothing yet.

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
        "has a reason."
    )
    table.add_column("Lab", no_wrap=True, max_width=30)
    for name in ("Exercises", "Predictions", "Answered", "Right"):
        table.add_column(name, justify="right", min_width=len(name))
    for one in progress(entries, [lab_source.read(entry_test.SOURCE), *lab_source.labs()]):
        lab = one.lab
        table.add_row(
            f"{lab.number} {lab.title}",
            f"{one.solved} of {len(lab.exercises)}",
            f"{one.reasoned} of {len(lab.predictions)}",
            f"{one.answered} of {len(lab.questions)}",
            f"{one.right} of {len(lab.questions)}",
        )
    Console().print(table)


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
