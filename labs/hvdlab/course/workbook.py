"""Keep a learner's predictions and answers, open hints, and give feedback on the questions of a lab.

    workbook = Workbook(6)
    hint = workbook.hint
    hint()      # in the cell of an exercise
    prediction = workbook.predict(1, 600, reason="below the noise scale, twice the batch halves the steps")
    workbook.result(1, measured)    # in the cell that measures it
    workbook.question(1, answer="b")

The questions of a lab are in `labs/questions/NN_name.toml`. The file `notebooks/work/answers.json` keeps what
the learner predicted, answered and opened, and `hvdlab progress` shows it.
"""

import math
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real

from hvdlab.course import answer_buttons, exercise_hints, experiment, generated_questions
from hvdlab.course.answers_file import (
    AnswersFile,
    Entry,
    OpenedHint,
    Prediction,
    QuizAnswer,
    Result,
    WorkbookError,
    last,
    learners_file,
    now,
)

QUESTIONS = experiment.LABS / "questions"


@dataclass(frozen=True)
class Question:
    """One question of a lab.

    Args:
        choices: the choices, shown as a, b, c. Empty if the answer is a number.
        tolerance: the largest relative deviation of a right number. Default 0.02.
        sections: the sections that a question of the entry test covers, for example "lab 2: Gradient".
    """

    text: str
    explanation: str
    answer: str | float
    choices: list[str] = field(default_factory=list)
    feedback: dict[str, str] = field(default_factory=dict)
    tolerance: float = 0.02
    mistakes: list[tuple[float, str]] = field(default_factory=list)
    otherwise: str = ""
    sections: list[str] = field(default_factory=list)

    @property
    def letters(self) -> str:
        """The letters of the choices, for example "abcd"."""
        return "abcdefgh"[: len(self.choices)]

    def wrong(self, answer: str | float) -> str | None:
        """Return the feedback on a wrong answer, or None if the answer is right.

        Raises:
            WorkbookError: the answer is neither one of the letters nor a number.
        """
        if self.choices:
            letter = str(answer).strip().lower()
            if letter not in self.letters or len(letter) != 1:
                raise WorkbookError(
                    f"answer must be one of {', '.join(self.letters)}. Received: {answer!r}"
                )
            return None if letter == self.answer else self.feedback[letter]
        try:
            number = float(answer)
        except (TypeError, ValueError):
            raise WorkbookError(f"answer must be a number. Received: {answer!r}") from None
        if math.isclose(number, self.answer, rel_tol=self.tolerance):
            return None
        for value, sentence in self.mistakes:
            if math.isclose(number, value, rel_tol=self.tolerance):
                return sentence
        return self.otherwise


def questions(lab: int, seed: int | None = None) -> list[Question]:
    """Return the questions of a lab.

    Args:
        lab: the number of the lab.
        seed: of the learner, for whom the numbers of some questions are drawn (generated_questions.py). None:
            these questions have the numbers of an example.

    Raises:
        WorkbookError: there is no file with the questions of this lab.
    """
    paths = sorted(QUESTIONS.glob(f"{lab:02d}_*.toml"))
    if not paths:
        raise WorkbookError(
            f"lab {lab} has no questions: there is no {QUESTIONS}/{lab:02d}_NAME.toml"
        )
    return [
        _question(entry, seed) for entry in tomllib.loads(paths[0].read_text("utf-8"))["question"]
    ]


def _question(entry: dict, seed: int | None) -> Question:
    """Return a question of a file, whose numbers may have to be drawn."""
    if name := entry.get("generated"):
        return Question(**generated_questions.question(name, entry["occurrence"], seed))
    return Question(**entry)


class Workbook:
    """The predictions and answers of one learner in one lab.

    Args:
        lab: the number of the lab.
        file: where they are kept. Default: the file of the learner whose notebook this is. A script and a
            notebook with the solutions keep nothing.
    """

    def __init__(self, lab: int, file: AnswersFile | None = None) -> None:
        self.lab = lab
        self._file = file or learners_file()
        # If there is no file: how many hints of each exercise are open, and what was predicted
        self._opened: Counter[str] = Counter()
        self._predicted: dict[int, float | str] = {}

    def predict(
        self,
        number: int,
        value: float | str | None,
        *,
        form: type | Sequence[str] = float,
        reason: str | None = None,
    ) -> float | str | None:
        """Keep a prediction and its reason, and return the value for the figure that shows the result.

        Args:
            number: the number of the prediction in this lab, from 1.
            value: the prediction. None: the learner makes none, and nothing is kept.
            form: what it must be: `float` for a number, `str` for any words, or the list of the texts from
                which the learner chooses. Default: a number.

        Raises:
            WorkbookError: the value has another form, or the reason is not a text.
        """
        if value is None:
            print(f"Prediction {number}: replace both values of None, then run this cell again.")
            return None
        value = _of_form(value, form, f"Prediction {number}")
        if not isinstance(reason, str | None):
            raise WorkbookError(
                f'Prediction {number}: the reason must be a sentence in quotes, reason="...". '
                f"Received: {reason!r}"
            )
        if not reason:
            print(f"Prediction {number}: add a reason. It shows you later what you believed.")
        self._predicted[number] = value if isinstance(value, str) else float(value)
        kept = self._predicted[number]
        self._keep(Prediction(self.lab, number, kept, reason or "", now()))
        return value

    def result(self, number: int, value: float | str) -> None:
        """Keep what the lab measured where it asked for a prediction, and say both in one line.

        Args:
            number: the number of the prediction in this lab.
            value: the result in the unit of the prediction, or one of the texts from which the learner chose.
        """
        value = value if isinstance(value, str) else float(value)
        self._keep(Result(self.lab, number, value, now()))
        made = self._prediction(number)
        said = f"you predicted {_in_words(made)}, and " if made is not None else ""
        print(f"Prediction {number}: {said}the result is {_in_words(value)}.")

    def _prediction(self, number: int) -> float | str | None:
        """Return the last prediction of a number, also that of an earlier session."""
        if number in self._predicted or self._file is None:
            return self._predicted.get(number)
        kept = last(self._file.entries(), Prediction, self.lab).get(number)
        return kept and kept.value

    def question(self, number: int, answer: str | float | None = None) -> None:
        """Show a question; with an answer, say whether it is right and why.

        Args:
            number: the number of the question in this lab, from 1.
            answer: the letter of a choice, or a number. None shows the question, in a learner's notebook with
                buttons for the answer.

        Raises:
            WorkbookError: there is no such question, or the answer is neither a letter of it nor a number.
        """
        asked = questions(self.lab, self._file.seed() if self._file else None)
        if number not in range(1, len(asked) + 1):
            raise WorkbookError(
                f"lab {self.lab} has the questions 1 to {len(asked)}. Received: {number!r}"
            )
        question = asked[number - 1]
        choices = zip(question.letters, question.choices, strict=True)
        lines = [
            f"**Question {number}.** {question.text}",
            *(f"* **{letter}** {choice}" for letter, choice in choices),
        ]
        if answer is None:
            kind = (
                f"one of the letters a to {question.letters[-1]}, in quotes,"
                if question.choices
                else "a number"
            )
            if experiment.NOTEBOOK and self._file:
                _show(lines)
                answer_buttons.show(
                    question.letters, lambda given: self._feedback(number, question, given)
                )
            else:
                _show([*lines, f"*Put {kind} in place of None.*"])
            return
        feedback = self._feedback(number, question, answer)
        _show([*lines, f"*Your answer:* {answer}", feedback])

    def _feedback(self, number: int, question: Question, answer: str | float) -> str:
        """Keep an answer, and say whether it is right and why."""
        wrong = question.wrong(answer)
        self._keep(QuizAnswer(self.lab, number, str(answer), wrong is None, now()))
        return f"**Right.** {question.explanation}" if wrong is None else f"**Not yet.** {wrong}"

    def hint(self) -> None:
        """Open the next hint of the exercise whose cell calls this, and show all that are open.

        The cell is the one that calls a check of the exercise, or defines its function.
        """
        source = exercise_hints.cell_source(sys._getframe(1))
        exercise = exercise_hints.exercise_of(source, self.lab)
        if exercise is None:
            print(
                f"This cell belongs to no exercise of lab {self.lab}. Call hint() in the cell in which you "
                "write your function, or in the cell of the check."
            )
            return
        hints, opened = exercise.hints, self._opened_hints(exercise.id)
        if not hints:
            print("This exercise has no hints.")
            return
        if opened < len(hints):
            opened += 1
            self._opened[exercise.id] = opened
            self._keep(OpenedHint(self.lab, exercise.id, opened, now()))
        lines = [
            text
            for one in hints[:opened]
            for text in (f"**{one.title}**", one.text if experiment.NOTEBOOK else one.plain().text)
        ]
        left = len(hints) - opened
        note = (
            f"*{opened} of {len(hints)} hints are open, and the next run of this cell opens another one. Put "
            "the # back before hint() until you need it.*"
        )
        _show([*lines, note if left else "*These are all hints of this exercise.*"])

    def _opened_hints(self, id: str) -> int:
        """Return how many hints of an exercise are open."""
        if self._file is None:
            return self._opened[id]
        kept = (one for one in self._file.entries() if isinstance(one, OpenedHint))
        return max((one.number for one in kept if one.exercise == id), default=0)

    def _keep(self, entry: Entry) -> None:
        if self._file:
            self._file.add(entry)


def _of_form(value: object, form: type | Sequence[str], name: str) -> float | str:
    """Return a prediction of the form that `Workbook.predict` describes; raise WorkbookError for another."""
    if form is float:
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        wanted, found = "a number, without quotes", [value] * is_number
    elif form is str:
        wanted, found = "some words in quotes", [value] * (isinstance(value, str) and value != "")
    else:
        quoted = [f'"{choice}"' for choice in form]
        wanted = f"{', '.join(quoted[:-1])} or {quoted[-1]}"
        found = [choice for choice in form if choice.lower() == str(value).strip().lower()]
    if not found:
        raise WorkbookError(f"{name} must be {wanted}. Received: {value!r}")
    return found[0]


def _in_words(value: float | str) -> str:
    """Return a text in quotes, or a number with at most four digits."""
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}"


def _show(lines: list[str]) -> None:
    """Show Markdown in a notebook, and plain text elsewhere."""
    if experiment.NOTEBOOK:
        from IPython.display import Markdown, display

        display(Markdown("\n\n".join(lines)))
    else:
        print("\n".join(lines))
