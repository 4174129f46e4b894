"""What a class did in the labs: numbers per lab, question, prediction and learner, and who is stuck."""

import datetime
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from hvdgrade.labs.answer_files import Learner
from hvdgrade.output.text import is_finite, plain
from hvdlab.course import lab_source, workbook
from hvdlab.course.answers_file import (
    Entry,
    OpenedHint,
    Prediction,
    QuizAnswer,
    Result,
    SolvedExercise,
    last,
)
from hvdlab.course.lab_source import LabSource
from hvdlab.course.progress import LabProgress, is_near, progress

MANY_WRONG_ANSWERS = 3  # to one question, without a right one
FEWEST = 3  # exercises of a lab that the fewest learners solved
MOST_SHOWN = 5  # wrong answers of a question, texts of a prediction
ASKED = re.compile(r"^# (?:Prediction|Decision) (\d+): ((?:.+\n)(?:# .+\n)*)", re.MULTILINE)
TO_DO = re.compile(r",?\s*(?:and )?(?:[Rr]eplace|Put)\b[^.?]*\bNone.*", re.DOTALL)


@dataclass(frozen=True)
class LearnerProgress:
    """What one learner did.

    Attributes:
        labs: progress in each lab of the course.
        stuck: sentences about what the learner began and did not solve.
        last: time of the latest entry; None if there is none with a time.
    """

    learner: Learner
    labs: tuple[LabProgress, ...]
    stuck: tuple[str, ...]
    last: datetime.datetime | None

    @property
    def name(self) -> str:
        """The name, or the id."""
        return self.learner.student.name or self.learner.student.id


def of_learner(learner: Learner, labs: Sequence[LabSource]) -> LearnerProgress:
    """Return what one learner did."""
    times = filter(None, (moment(one.time) for one in learner.entries))
    return LearnerProgress(
        learner,
        tuple(progress(learner.entries, labs)),
        tuple(stuck(learner.entries, labs)),
        max(times, default=None),
    )


def moment(text: str) -> datetime.datetime | None:
    """Return the time of an entry in UTC; None for a text that is no time or lies in the future."""
    try:
        read = datetime.datetime.fromisoformat(text)
        known = read.tzinfo and read <= datetime.datetime.now(datetime.UTC)
        return read.astimezone(datetime.UTC) if known else None
    except (ValueError, OverflowError):
        return None


def stuck(entries: Iterable[Entry], labs: Sequence[LabSource]) -> list[str]:
    """Return what a learner began and did not solve.

    These are exercises of which a hint is open, and questions with several wrong answers and no right one.
    """
    entries = list(entries)
    solved = {one.exercise for one in entries if isinstance(one, SolvedExercise)}
    opened = {(one.exercise, one.number) for one in entries if isinstance(one, OpenedHint)}
    hints = Counter(exercise for exercise, _ in opened if exercise not in solved)
    answers = [one for one in entries if isinstance(one, QuizAnswer)]
    right = {(one.lab, one.number) for one in answers if one.right}
    wrong = Counter((one.lab, one.number) for one in answers if not one.right)
    said = []
    for lab in labs:
        said += [
            f"{titled(exercise)}: {counted(hints[exercise], 'hint')} opened"
            for exercise in lab.exercises
            if exercise in hints
        ]
        said += [
            f"lab {lab.number}, question {number}: {counted(wrong[lab.number, number], 'wrong answer')}"
            for number in sorted(lab.questions)
            if (lab.number, number) not in right and wrong[lab.number, number] >= MANY_WRONG_ANSWERS
        ]
    return said


def titled(exercise: str) -> str:
    """Return the id of an exercise in words, for example "lab 2, gradient" for "lab02.gradient"."""
    lab, _, name = exercise.partition(".")
    return f"lab {int(lab.removeprefix('lab'))}, {name.replace('_', ' ')}"


def counted(number: int, what: str) -> str:
    """Return for example "1 hint" or "2 hints"."""
    return f"{number} {what}{'s' * (number != 1)}"


def lab_rows(class_: Sequence[LearnerProgress], labs: Sequence[LabSource]) -> list[dict]:
    """Return a row per lab: how many learners began it, and what they solved and answered."""
    rows = []
    for place, lab in enumerate(labs):
        begun = [one.labs[place] for one in class_ if has_begun(one, lab.number)]
        solved = Counter(id for one in begun for id in one.solved)
        asked = sum(one.answered for one in begun)
        rows.append(
            {
                "name": f"{lab.number} {lab.title}",
                "begun": len(begun),
                "solved": median(len(one.solved) for one in begun) if begun else None,
                "exercises": len(lab.exercises),
                "right": sum(one.right for one in begun) / asked if asked else None,
                "fewest": [
                    f"{titled(id).partition(', ')[2]} ({solved[id]})"
                    for id in sorted(lab.exercises, key=lambda id: solved[id])[:FEWEST]
                ]
                if begun
                else [],
            }
        )
    return rows


def has_begun(one: LearnerProgress, lab: int) -> bool:
    """Return whether a learner has an entry in a lab."""
    return any(entry.lab == lab for entry in one.learner.entries)


def question_rows(learners: Sequence[Learner], labs: Sequence[LabSource]) -> list[dict]:
    """Return a row per question with an answer: how many were right at once, and the usual wrong answers.

    A learner counts once for each different wrong answer.
    """
    rows = []
    for lab in labs:
        asked = workbook.questions(lab.number)
        for number in sorted(lab.questions):
            by_learner = [
                answers for one in learners if (answers := _answers(one, lab.number, number))
            ]
            if not by_learner or number > len(asked):
                continue
            wrong = Counter(
                text
                for answers in by_learner
                for text in {_shown(one.answer) for one in answers if not one.right}
            )
            question = asked[number - 1]
            choices = dict(zip(question.letters, question.choices, strict=True))
            rows.append(
                {
                    "name": f"lab {lab.number}, question {number}",
                    "text": question.text,
                    "answered": len(by_learner),
                    "at_once": sum(answers[0].right for answers in by_learner),
                    "never": sum(not any(one.right for one in answers) for answers in by_learner),
                    "wrong": [
                        {"answer": text, "choice": choices.get(text, ""), "count": count}
                        for text, count in wrong.most_common(MOST_SHOWN)
                    ],
                }
            )
    return sorted(rows, key=lambda row: row["at_once"] / row["answered"])


def _answers(learner: Learner, lab: int, number: int) -> list[QuizAnswer]:
    return [
        one
        for one in learner.entries
        if isinstance(one, QuizAnswer) and (one.lab, one.number) == (lab, number)
    ]


def _shown(answer: str) -> str:
    """Return an answer as a short text; a letter in lower case."""
    return plain(answer.strip().lower(), 40)


def prediction_rows(learners: Sequence[Learner], labs: Sequence[LabSource]) -> list[dict]:
    """Return a row per prediction that somebody made: the question, the values and the results.

    The last prediction and the last result of a learner count.
    """
    rows = []
    for lab in labs:
        asked = questions_of_predictions(lab)
        predictions = [last(one.entries, Prediction, lab.number) for one in learners]
        results = [last(one.entries, Result, lab.number) for one in learners]
        for number in sorted(lab.predictions):
            made = [each[number] for each in predictions if number in each]
            measured = [each[number] for each in results if number in each]
            both = [
                (its[number].value, result[number].value)
                for its, result in zip(predictions, results, strict=True)
                if number in its and number in result
            ]
            if made:
                rows.append(
                    {
                        "name": f"lab {lab.number}, prediction {number}",
                        "text": asked.get(number, ""),
                        "reasoned": f"{sum(bool(one.reason.strip()) for one in made)} of {len(made)}",
                        "values": values_in_words([one.value for one in made]),
                        "results": values_in_words([one.value for one in measured]),
                        "near": f"{sum(is_near(*pair) for pair in both)} of {len(both)}"
                        if both
                        else "",
                    }
                )
    return rows


def values_in_words(values: Sequence[float | str]) -> str:
    """Return the median and the range of the numbers, and how often each text was chosen."""
    numbers = [value for value in values if is_finite(value)]
    texts = Counter(plain(value, 60) for value in values if isinstance(value, str))
    said = [f"{text}: {count}" for text, count in texts.most_common(MOST_SHOWN)]
    if numbers:
        low, middle, high = (f"{at(numbers):.4g}" for at in (min, median, max))
        said.append(f"median {middle} ({low} to {high})" if low != high else low)
    return "; ".join(said)


def questions_of_predictions(lab: LabSource) -> dict[int, str]:
    """Return what a lab asks the learner to predict, by the number of the prediction."""
    found = {}
    for path in (lab.path, *lab.optional):
        for number, text in ASKED.findall(path.read_text(encoding="utf-8")):
            words = " ".join(text.replace("\n# ", " ").split())
            found[int(number)] = TO_DO.sub("", words)
    return found


def course() -> list[LabSource]:
    """Return the labs of the course."""
    return lab_source.labs()
