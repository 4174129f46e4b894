"""The format `moodle`: one XML file for "Question bank, Import, Moodle XML format".

Moodle cannot import QTI 1.2. Its XML format keeps a feedback for every choice and for every wrong number.

Source: https://docs.moodle.org/en/Moodle_XML_format
"""

from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element, SubElement

from hvdgrade.quiz.bank import BankQuestion, LabQuiz, plain_number

CATEGORY = "$course$/top/Questions of the labs"


def content(quizzes: list[LabQuiz]) -> bytes:
    """Return the file."""
    root = Element("quiz")
    for quiz in quizzes:
        category = SubElement(SubElement(root, "question", type="category"), "category")
        # A slash separates categories, so a slash in a title is written twice.
        SubElement(category, "text").text = f"{CATEGORY}/{quiz.name.replace('/', '//')}"
        for question in quiz.questions:
            root.append(_question(question))
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _question(question: BankQuestion) -> Element:
    element = Element("question", type="multichoice" if question.choices else "numerical")
    name = f"Lab {question.lab}, question {question.number}"
    SubElement(SubElement(element, "name"), "text").text = name
    _html(element, "questiontext", question.text)
    for tag, value in (("defaultgrade", "1"), ("penalty", "0.3333333"), ("hidden", "0")):
        SubElement(element, tag).text = value
    SubElement(element, "idnumber").text = question.id
    if question.choices:
        for tag, value in (
            *(("single", "true"), ("shuffleanswers", "false"), ("answernumbering", "abc")),
        ):
            SubElement(element, tag).text = value
        for choice in question.choices:
            _answer(element, choice.text, choice.feedback, choice.right, format="html")
        return element
    # Moodle uses the first answer that fits, and "*" fits every number.
    _number(element, question.answer, question.tolerance, question.explanation, right=True)
    for mistake in question.mistakes:
        _number(element, mistake.value, question.tolerance, mistake.feedback, right=False)
    rest = _answer(element, "*", question.otherwise, False)
    SubElement(rest, "tolerance").text = "0"
    return element


def _number(element: Element, value: float, tolerance: float, feedback: str, right: bool) -> None:
    answer = _answer(element, plain_number(value), feedback, right)
    SubElement(answer, "tolerance").text = plain_number(abs(value) * tolerance)


def _answer(
    element: Element, text: str, feedback: str, right: bool, format: str = "moodle_auto_format"
) -> Element:
    answer = SubElement(element, "answer", fraction="100" if right else "0", format=format)
    SubElement(answer, "text").text = text
    _html(answer, "feedback", feedback)
    return answer


def _html(element: Element, tag: str, text: str) -> None:
    SubElement(SubElement(element, tag, format="html"), "text").text = text
