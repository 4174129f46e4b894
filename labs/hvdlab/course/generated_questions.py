"""Questions whose numbers are drawn for each learner, and which return in a later lab with other numbers.

The file `labs/questions/generated.toml` has the templates. A lab asks for one by its name:

    [[question]]
    generated = "efficiency"
    occurrence = 1              # how many earlier labs ask it: this lab draws other numbers than they do

Fields of a template:

    numbers     for each name the values of which one is drawn
    derived     names for further numbers, each an expression of the names before it
    answer      the right answer as an expression
    mistakes    expression, sentence: the sentence can use {value}, the number that the expression gives
    text, explanation, otherwise        can use all names and {answer}, with a format as in {answer:g}
"""

import ast
import math
import operator
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product

from hvdlab.course import experiment

TEMPLATES = experiment.LABS / "questions" / "generated.toml"
FUNCTIONS = {"ceil": math.ceil, "sqrt": math.sqrt}
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
EXAMPLE = 0  # the seed where there is no learner: a script, the site, files for learning platforms
Numbers = dict[str, float]


@dataclass(frozen=True)
class Template:
    """A question with numbers to draw; the beginning of this file explains the fields."""

    text: str
    explanation: str
    otherwise: str
    numbers: Mapping[str, list[float]]
    answer: str
    mistakes: list[tuple[str, str]]
    derived: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 0.02

    def choices(self) -> list[Numbers]:
        """Return every choice of numbers, with the derived numbers and the answer."""
        drawn = [
            dict(zip(self.numbers, values, strict=True))
            for values in product(*self.numbers.values())
        ]
        for numbers in drawn:
            for name, expression in {**self.derived, "answer": self.answer}.items():
                numbers[name] = evaluate(expression, numbers)
        return drawn

    def question(self, seed: int, occurrence: int) -> dict:
        """Return the fields of a question with the numbers of a learner.

        Args:
            seed: of the learner.
            occurrence: 0 in the lab that asks first, 1 in the lab in which the question returns.
        """
        numbers = self._draws(seed)[occurrence]
        mistakes = [
            (float(f"{evaluate(expression, numbers):.4g}"), sentence)  # a learner rounds, too
            for expression, sentence in self.mistakes
        ]
        texts = {
            name: getattr(self, name).format(**numbers)
            for name in ("text", "explanation", "otherwise")
        }
        said = [(value, sentence.format(**numbers, value=value)) for value, sentence in mistakes]
        return {**texts, "answer": numbers["answer"], "mistakes": said, "tolerance": self.tolerance}

    def _draws(self, seed: int) -> list[Numbers]:
        """Return choices of numbers in a random order. No two of them have the same answer."""
        choices = self.choices()
        random.Random(seed).shuffle(choices)
        by_answer: dict[str, Numbers] = {}
        for numbers in choices:
            by_answer.setdefault(f"{numbers['answer']:.3g}", numbers)
        return list(by_answer.values())


def evaluate(expression: str, numbers: Numbers) -> float:
    """Return the value of an arithmetic expression of names, numbers, `ceil` and `sqrt`."""
    return _value(ast.parse(expression, mode="eval").body, numbers)


def _value(node: ast.expr, numbers: Numbers) -> float:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return numbers[node.id]
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](_value(node.operand, numbers))
    if isinstance(node, ast.BinOp):
        parts = _value(node.left, numbers), _value(node.right, numbers)
        return OPERATORS[type(node.op)](*parts)
    if isinstance(node, ast.Call):
        return FUNCTIONS[node.func.id](*(_value(part, numbers) for part in node.args))
    raise ValueError(f"a template must not contain {ast.unparse(node)!r}")


@cache
def templates() -> dict[str, Template]:
    """Return the templates by their names."""
    entries = tomllib.loads(TEMPLATES.read_text("utf-8"))
    return {name: Template(**entry) for name, entry in entries.items()}


def question(name: str, occurrence: int, seed: int | None) -> dict:
    """Return the fields of a question with drawn numbers.

    Args:
        name: of the template.
        occurrence: 0 in the lab that asks first, 1 in the lab in which the question returns.
        seed: of the learner. None: the numbers of the example.
    """
    return templates()[name].question(EXAMPLE if seed is None else seed, occurrence)
