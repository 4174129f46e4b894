"""The file that keeps what a learner predicted, answered and solved: `notebooks/work/answers.json`."""

import datetime
import json
import os
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from hvdlab import HvdlabError
from hvdlab.course import experiment
from hvdlab.course.lab_source import exercise_id

PATH = experiment.WORK / "answers.json"


class WorkbookError(HvdlabError, ValueError):
    """An entry or a file that the workbook cannot accept; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Prediction:
    """A prediction: lab, its number in the lab, value, reason, and when it was made (ISO 8601, UTC)."""

    lab: int
    number: int
    value: float | str
    reason: str
    time: str


@dataclass(frozen=True)
class Result:
    """What the lab measured where a prediction was asked: lab, number of the prediction, value, and when."""

    lab: int
    number: int
    value: float | str
    time: str


@dataclass(frozen=True)
class QuizAnswer:
    """An answer to a question: lab, number of the question, the answer, whether it is right, and when."""

    lab: int
    number: int
    answer: str
    right: bool
    time: str


@dataclass(frozen=True)
class SolvedExercise:
    """An exercise whose check said "Right": lab, id of the exercise, and when.

    Files of earlier versions have the name of the check in place of the id.
    """

    lab: int
    exercise: str
    time: str

    def __post_init__(self) -> None:
        check, _, case = self.exercise.partition(" ")
        if check.startswith("check_"):
            id = exercise_id(self.lab, check, int(case) if case else None)
            object.__setattr__(self, "exercise", id)


@dataclass(frozen=True)
class OpenedHint:
    """A hint that the learner has opened: lab, id of the exercise, number of the hint from 1, and when."""

    lab: int
    exercise: str
    number: int
    time: str


KINDS = {
    "predictions": Prediction,
    "questions": QuizAnswer,
    "exercises": SolvedExercise,
    "hints": OpenedHint,
    "results": Result,
}
ADDED = ("hints", "results")  # files of earlier versions lack these
Entry = Prediction | Result | QuizAnswer | SolvedExercise | OpenedHint


class AnswersFile:
    """All entries of one learner, in the order in which they were made, and the learner's seed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[Entry]:
        """Return all entries.

        Raises:
            WorkbookError: the file cannot be read, or it is not one that this class wrote.
        """
        try:
            kept = {**dict.fromkeys(ADDED, []), **self._kept()}
            return [KINDS[kind](**entry) for kind in KINDS for entry in kept[kind]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WorkbookError(
                f"{self.path} is not a file of answers ({type(error).__name__}: {error}). Move it away to "
                "start a new one."
            ) from error

    def add(self, entry: Entry) -> None:
        """Add an entry.

        Raises:
            WorkbookError: the file cannot be read or written, or it is not one that this class wrote.
        """
        self._write([*self.entries(), entry], self._kept())

    def seed(self) -> int:
        """Return the seed of the numbers that are drawn for this learner. The first call chooses it.

        Raises:
            WorkbookError: the file cannot be read or written, or it is not one that this class wrote.
        """
        entries, kept = self.entries(), self._kept()
        if "seed" not in kept:
            kept["seed"] = random.randrange(2**32)
            self._write(entries, kept)
        return kept["seed"]

    def _kept(self) -> dict:
        """Return the content of the file. A file that does not exist yet has no entries."""
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {kind: [] for kind in KINDS}

    def _write(self, entries: list[Entry], kept: dict) -> None:
        """Write the file: the entries, and the seed of the content that it had."""
        new = {
            kind: [asdict(one) for one in entries if isinstance(one, cls)]
            for kind, cls in KINDS.items()
        }
        if "seed" in kept:
            new["seed"] = kept["seed"]
        part = self.path.with_suffix(".json.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(new, indent=1), encoding="utf-8")
            os.replace(part, self.path)
        except OSError as error:
            raise WorkbookError(f"{self.path} cannot be written ({error}).") from error


def last(entries: Iterable[Entry], kind: type[Entry], lab: int) -> dict[int, Entry]:
    """Return the last prediction, or another entry of a kind that has a number, for each number in a lab."""
    return {one.number: one for one in entries if isinstance(one, kind) and one.lab == lab}


def learners_file() -> AnswersFile | None:
    """Return the file of the learner whose notebook this is.

    None outside a notebook, and in the notebooks with the solutions, which set LAB_WORK: what they answer is
    not what the learner answers.
    """
    own = experiment.NOTEBOOK and "LAB_WORK" not in os.environ
    return AnswersFile(PATH) if own else None


def now() -> str:
    """Return the time as ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
