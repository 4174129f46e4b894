"""The questions of the labs in the form that the formats write: HTML, and feedback on every answer."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from markdown_it import MarkdownIt

from hvdgrade import HvdgradeError
from hvdlab.course import lab_source, workbook

MARKDOWN = MarkdownIt("commonmark", {"html": False})  # so that "<" in a question is not a tag


class NoSuchLab(HvdgradeError):
    """The course has no such lab. The message says which labs it has."""


@dataclass(frozen=True)
class Choice:
    """One choice of a question: its letter, its text and feedback in HTML, and whether it is right."""

    letter: str
    text: str
    feedback: str
    right: bool


@dataclass(frozen=True)
class Mistake:
    """A wrong number, and the feedback on it in HTML."""

    value: float
    feedback: str


@dataclass(frozen=True)
class BankQuestion:
    """One question.

    Attributes:
        lab: number of the lab.
        number: number of the question in the lab, from 1.
        text: the question in HTML.
        choices: the choices. Empty if the answer is a number.
        answer: the right number; 0 if there are choices.
        tolerance: the largest relative deviation of a number that still counts.
        explanation: feedback on the right number, in HTML.
        mistakes: wrong numbers that have a feedback of their own.
        otherwise: feedback on every other number, in HTML.
    """

    lab: int
    number: int
    text: str
    choices: tuple[Choice, ...] = ()
    answer: float = 0.0
    tolerance: float = 0.0
    explanation: str = ""
    mistakes: tuple[Mistake, ...] = ()
    otherwise: str = ""

    @property
    def id(self) -> str:
        """Return the identifier of the question in a file, for example "lab05_q1"."""
        return f"lab{self.lab:02d}_q{self.number}"


@dataclass(frozen=True)
class LabQuiz:
    """The questions of one lab, with its number and title."""

    lab: int
    title: str
    questions: tuple[BankQuestion, ...]

    @property
    def name(self) -> str:
        """Return the name of the quiz, for example "Lab 5: Horovod"."""
        return f"Lab {self.lab}: {self.title}"


def read(numbers: Iterable[int] = (), variant: int | None = None) -> list[LabQuiz]:
    """Return the quizzes of the labs.

    Args:
        numbers: the labs. Default: all labs.
        variant: number of a variant. The choices get another order, and numbers that are drawn other values.
            Default: None, the order of the labs and the numbers of their example.

    Raises:
        NoSuchLab: the course has no lab with one of the numbers.
        WorkbookError: a lab has no file with questions.
    """
    titles = {lab.number: lab.title for lab in lab_source.labs()}
    wanted = sorted(set(numbers)) or sorted(titles)
    if unknown := [number for number in wanted if number not in titles]:
        last = max(titles, default=0)
        raise NoSuchLab(f"there is no lab {unknown[0]}: the labs are 1 to {last}.")
    return [
        LabQuiz(
            lab,
            titles[lab],
            tuple(
                shuffled(_converted(lab, number, question), variant)
                for number, question in enumerate(workbook.questions(lab, variant), start=1)
            ),
        )
        for lab in wanted
    ]


def shuffled(question: BankQuestion, variant: int | None) -> BankQuestion:
    """Return a question with the choices in the order of a variant; equal variants give equal orders."""
    choices = list(question.choices)
    if variant is not None:
        random.Random(f"{variant} {question.id}").shuffle(choices)
    letters = sorted(choice.letter for choice in choices)
    lettered = zip(choices, letters, strict=True)
    return replace(
        question, choices=tuple(replace(choice, letter=letter) for choice, letter in lettered)
    )


def _converted(lab: int, number: int, question: workbook.Question) -> BankQuestion:
    text = MARKDOWN.render(question.text).strip()
    if question.choices:
        choices = tuple(
            Choice(
                letter,
                MARKDOWN.renderInline(choice),
                MARKDOWN.renderInline(question.feedback.get(letter, question.explanation)),
                letter == question.answer,
            )
            for letter, choice in zip(question.letters, question.choices, strict=True)
        )
        return BankQuestion(lab, number, text, choices)
    mistakes = tuple(
        Mistake(value, MARKDOWN.renderInline(sentence)) for value, sentence in question.mistakes
    )
    return BankQuestion(
        *(lab, number, text, (), float(question.answer), question.tolerance),
        *(MARKDOWN.renderInline(question.explanation), mistakes),
        MARKDOWN.renderInline(question.otherwise),
    )


def plain_number(value: float) -> str:
    """Return a number as text with 12 significant digits, without an exponent and without a trailing ".0"."""
    return f"{Decimal(f'{value:.12g}'):f}"
