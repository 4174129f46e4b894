"""The question bank: each file is read again without our code and compared with labs/questions/*.toml."""

import html
import io
import math
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hvdgrade.quiz import bank, moodle_xml, qti
from hvdlab.course import generated_questions

ROOT = Path(__file__).parents[3]
NAMESPACE = {"q": "http://www.imsglobal.org/xsd/ims_qtiasiv1p2"}
# Elements of QTI 1.2.1 with the order of their children, from the specification's tables.
ORDER = {
    "questestinterop": ["assessment"],
    "assessment": ["section"],
    "section": ["item"],
    "item": ["itemmetadata", "presentation", "resprocessing", "itemfeedback"],
    "itemmetadata": ["qtimetadata"],
    "qtimetadata": ["qtimetadatafield"],
    "qtimetadatafield": ["fieldlabel", "fieldentry"],
    "presentation": ["material", "response_lid", "response_str"],
    "response_lid": ["render_choice"],
    "response_str": ["render_fib"],
    "render_choice": ["response_label"],
    "render_fib": ["response_label"],
    "response_label": ["material"],
    "resprocessing": ["outcomes", "respcondition"],
    "outcomes": ["decvar"],
    "respcondition": ["conditionvar", "setvar", "displayfeedback"],
    "itemfeedback": ["flow_mat"],
    "flow_mat": ["material"],
    "material": ["mattext"],
}


@pytest.fixture(scope="module")
def expected() -> dict[str, dict]:
    """Return each question as the TOML file has it, by its identifier.

    A question whose numbers are drawn has the numbers of its example.
    """
    found = {}
    for path in sorted((ROOT / "labs" / "questions").glob("[0-9]*.toml"))[
        1:
    ]:  # without the entry test
        asked = tomllib.loads(path.read_text(encoding="utf-8"))["question"]
        for number, question in enumerate(asked, start=1):
            if "generated" in question:
                question = generated_questions.question(*question.values(), seed=None)
            found[f"lab{path.name[:2]}_q{number}"] = question
    return found


@pytest.fixture(scope="module")
def quizzes() -> list[bank.LabQuiz]:
    return bank.read()


@pytest.fixture(scope="module")
def package(quizzes) -> dict[str, ET.Element]:
    with zipfile.ZipFile(io.BytesIO(qti.content(quizzes))) as archive:
        assert archive.testzip() is None
        return {name: ET.fromstring(archive.read(name)) for name in archive.namelist()}


def words(text: str) -> str:
    """Return a text without markup and spaces, from HTML or from Markdown."""
    return re.sub(r"[`*_\s]", "", html.unescape(re.sub(r"<[^>]+>", "", text)))


def choices_of(question: dict) -> list[tuple[str, bool, str]]:
    found = []
    for letter, choice in zip("abcdefgh", question["choices"], strict=False):
        right = letter == question["answer"]
        feedback = question["explanation"] if right else question["feedback"][letter]
        found.append((words(choice), right, words(feedback)))
    return found


def test_qti_has_every_question_with_its_choices_and_the_feedback_on_each(package, expected):
    items = {
        item.get("ident"): item
        for root in package.values()
        for item in root.iterfind(".//q:item", NAMESPACE)
    }
    assert list(items) == list(expected)
    for ident, item in items.items():
        question = expected[ident]
        shown = item.find("q:presentation/q:material/q:mattext", NAMESPACE).text
        assert words(shown) == words(question["text"])
        feedback = {
            one.get("ident"): words(one.find(".//q:mattext", NAMESPACE).text)
            for one in item.iterfind("q:itemfeedback", NAMESPACE)
        }
        outcome = {}  # what is chosen -> whether it scores, and the feedback that it shows
        for condition in item.iterfind(".//q:respcondition", NAMESPACE):
            chosen = condition.find(".//q:varequal", NAMESPACE)
            score = condition.findtext("q:setvar", "0", NAMESPACE)
            link = condition.find("q:displayfeedback", NAMESPACE).get("linkrefid")
            outcome[None if chosen is None else chosen.text] = score != "0", feedback[link]
        if "choices" in question:
            labels = item.findall(".//q:response_label", NAMESPACE)
            found = [
                (words(label.find(".//q:mattext", NAMESPACE).text), *outcome[label.get("ident")])
                for label in labels
            ]
            assert found == choices_of(question)
            continue
        assert outcome.pop(None) == (
            False,
            words(question["otherwise"])
            + "".join(
                f"Ifyouanswered{value:g}:{words(text)}" for value, text in question["mistakes"]
            ),
        )
        [(answer, result)] = outcome.items()
        assert float(answer) == pytest.approx(question["answer"])
        assert result == (True, words(question["explanation"]))
        low, high = (
            float(item.find(f".//q:{tag}", NAMESPACE).text) for tag in ("vargte", "varlte")
        )
        deviation = question.get("tolerance", 0.02) * abs(question["answer"])
        assert (low, high) == pytest.approx(
            (question["answer"] - deviation, question["answer"] + deviation)
        )


def test_moodle_has_every_question_and_gives_every_number_the_feedback_of_the_lab(
    quizzes, expected
):
    root = ET.fromstring(moodle_xml.content(quizzes))
    found = [one for one in root if one.get("type") != "category"]
    assert [one.findtext("idnumber") for one in found] == list(expected)
    assert len(root) - len(found) == len(quizzes)
    for element in found:
        question = expected[element.findtext("idnumber")]
        assert words(element.findtext("questiontext/text")) == words(question["text"])
        answers = [
            (
                one.findtext("text"),
                one.get("fraction") == "100",
                words(one.findtext("feedback/text")),
                float(one.findtext("tolerance", "0")),
            )
            for one in element.iterfind("answer")
        ]
        if "choices" in question:
            shown = [(words(text), right, feedback) for text, right, feedback, _ in answers]
            assert shown == choices_of(question)
            continue
        tolerance = question.get("tolerance", 0.02)
        values = [question["answer"], *(value for value, _ in question["mistakes"])]
        for value in values:
            for factor in (1, 1 - 0.9 * tolerance, 1 + 0.9 * tolerance, 1 - 1.5 * tolerance, 7.7):
                number = value * factor
                # As Moodle decides: the first answer that is near enough counts, and "*" fits every number.
                near = next(
                    (right, feedback)
                    for text, right, feedback, distance in answers
                    if text == "*" or abs(number - float(text)) <= distance
                )
                assert near == feedback_in_the_lab(question, number, tolerance)


def feedback_in_the_lab(question: dict, number: float, tolerance: float) -> tuple[bool, str]:
    if math.isclose(number, question["answer"], rel_tol=tolerance):
        return True, words(question["explanation"])
    for value, text in question["mistakes"]:
        if math.isclose(number, value, rel_tol=tolerance):
            return False, words(text)
    return False, words(question["otherwise"])


def test_elements_have_the_order_that_the_specification_of_qti_demands(package):
    manifest = package.pop("imsmanifest.xml")
    for root in package.values():
        for element in root.iter():
            tag = element.tag.partition("}")[2]
            children = [child.tag.partition("}")[2] for child in element]
            if tag in ORDER:
                assert set(children) <= set(ORDER[tag]), tag
                assert children == sorted(children, key=ORDER[tag].index), tag
            assert "ident" in element.attrib or tag not in ("item", "section", "assessment")
    files = {one.get("href") for one in manifest.iter() if one.tag.endswith("}file")}
    assert files == set(package) and len(files) == 18
    package["imsmanifest.xml"] = manifest


def test_equal_questions_give_equal_bytes(quizzes):
    assert qti.content(quizzes) == qti.content(bank.read())


def test_the_command_writes_the_labs_that_are_named_and_refuses_others(tmp_path):
    out = tmp_path / "day.xml"
    answer = quiz(out, "--format", "moodle", "--lab", "5", "4")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == f"{out}: 14 questions of 2 labs\n"
    assert "Lab 4: " in out.read_text(encoding="utf-8")
    wrong = quiz(tmp_path / "no.zip", "--format", "qti", "--lab", "19")
    assert wrong.returncode == 2 and not (tmp_path / "no.zip").exists()
    assert wrong.stderr == "hvdgrade quiz: there is no lab 19: the labs are 1 to 18.\n"


def quiz(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "hvdgrade.cli", "quiz", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_variant_has_the_same_choices_in_another_order_and_other_drawn_numbers():
    plain, one, again, two = (bank.read([5], variant) for variant in (None, 1, 1, 2))
    assert one == again and one != two and one != plain
    for quiz, varied in zip(plain, one, strict=True):
        for before, after in zip(quiz.questions, varied.questions, strict=True):
            pairs = [
                {(c.text, c.feedback, c.right) for c in each.choices} for each in (before, after)
            ]
            assert pairs[0] == pairs[1]
            assert [c.letter for c in before.choices] == [c.letter for c in after.choices]
    assert any(
        q.answer != v.answer for q, v in zip(plain[0].questions, one[0].questions, strict=True)
    )
