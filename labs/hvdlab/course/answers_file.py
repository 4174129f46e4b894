"""The file that keeps what a learner predicted, answered and solved: `notebooks/work/answers.json`."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from hvdlab import HvdlabError


class AnswersFileError(HvdlabError, ValueError):
    """A file of answers that cannot be read; the message names it and says what to do."""


@dataclass(frozen=True)
class Prediction:
    """A prediction: lab, its number in the lab, value, reason, and when it was made (ISO 8601, UTC)."""

    lab: int
    number: int
    value: float
    reason: str
    time: str


@dataclass(frozen=True)
class QuizAnswer:
    """An answer to a question: lab, number of the question, the answer, whether it is right, and when."""

    lab: int
    number: int
    answer: str | float
    right: bool
    time: str


@dataclass(frozen=True)
class SolvedExercise:
    """An exercise whose check said "Right": lab, the check's name, and when."""

    lab: int
    check: str
    time: str


KINDS = {"predictions": Prediction, "questions": QuizAnswer, "exercises": SolvedExercise}
Entry = Prediction | QuizAnswer | SolvedExercise


class AnswersFile:
    """All entries of one learner, in the order in which they were made.

    Args:
        path: the JSON file. It is created with the first entry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[Entry]:
        """Return all entries.

        Raises:
            AnswersFileError: the file is not one that this class wrote.
        """
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            return [KINDS[kind](**entry) for kind in KINDS for entry in kept[kind]]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise AnswersFileError(
                f"{self.path} is not a file of answers ({error}). Move it away to start a new one."
            ) from error

    def add(self, entry: Entry) -> None:
        """Add an entry.

        Args:
            entry: what the learner did.

        Raises:
            AnswersFileError: the file is not one that this class wrote.
        """
        entries = [*self.entries(), entry]
        kept = {
            kind: [asdict(one) for one in entries if isinstance(one, cls)]
            for kind, cls in KINDS.items()
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".json.part")
        part.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        os.replace(part, self.path)
