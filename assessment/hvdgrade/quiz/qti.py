"""The format `qti`: a package of IMS QTI 1.2 with one assessment per lab, as Canvas imports it.

Canvas counts every number that a numerical question names as a right answer. Therefore the feedback on wrong
numbers is one text, which lists each of them.

Source: IMS Question & Test Interoperability, ASI XML binding, version 1.2.1 (IMS Global Learning Consortium,
2003), and the vocabulary of Canvas for `question_type` and for the identifiers of feedback.
"""

import io
import zipfile
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element, SubElement

from hvdgrade.quiz.bank import BankQuestion, LabQuiz, plain_number

QTI = "http://www.imsglobal.org/xsd/ims_qtiasiv1p2"
PACKAGE = "http://www.imsglobal.org/xsd/imscp_v1p1"
RESPONSE = "response1"
DATE = (
    2000,
    1,
    1,
    0,
    0,
    0,
)  # of each file in the package, so that equal questions give equal bytes


def content(quizzes: list[LabQuiz]) -> bytes:
    """Return the package, a ZIP archive."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as package:
        for name, root in {
            "imsmanifest.xml": _manifest(quizzes),
            **{_file(quiz): _assessment(quiz) for quiz in quizzes},
        }.items():
            ET.indent(root)
            text = ET.tostring(root, encoding="utf-8", xml_declaration=True)
            package.writestr(zipfile.ZipInfo(name, DATE), text, zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def _file(quiz: LabQuiz) -> str:
    return f"lab{quiz.lab:02d}.xml"


def _manifest(quizzes: list[LabQuiz]) -> Element:
    root = Element("manifest", xmlns=PACKAGE, identifier="hvdlab_questions")
    metadata = SubElement(root, "metadata")
    SubElement(metadata, "schema").text = "IMS Content"
    SubElement(metadata, "schemaversion").text = "1.1.3"
    SubElement(root, "organizations")
    resources = SubElement(root, "resources")
    for quiz in quizzes:
        resource = SubElement(
            resources,
            "resource",
            identifier=f"lab{quiz.lab:02d}",
            type="imsqti_xmlv1p2",
            href=_file(quiz),
        )
        SubElement(resource, "file", href=_file(quiz))
    return root


def _assessment(quiz: LabQuiz) -> Element:
    root = Element("questestinterop", xmlns=QTI)
    assessment = SubElement(root, "assessment", ident=f"lab{quiz.lab:02d}", title=quiz.name)
    section = SubElement(assessment, "section", ident="root_section")
    for question in quiz.questions:
        section.append(_item(question))
    return root


def _item(question: BankQuestion) -> Element:
    item = Element("item", ident=question.id, title=f"Question {question.number}")
    kind = "multiple_choice_question" if question.choices else "numerical_question"
    fields = SubElement(SubElement(item, "itemmetadata"), "qtimetadata")
    for label, entry in (("question_type", kind), ("points_possible", "1")):
        field = SubElement(fields, "qtimetadatafield")
        SubElement(field, "fieldlabel").text = label
        SubElement(field, "fieldentry").text = entry
    presentation = SubElement(item, "presentation")
    _material(presentation, question.text)
    if question.choices:
        _choices(question, item, presentation)
    else:
        _number(question, item, presentation)
    return item


def _choices(question: BankQuestion, item: Element, presentation: Element) -> None:
    response = SubElement(presentation, "response_lid", ident=RESPONSE, rcardinality="Single")
    shown = SubElement(response, "render_choice", shuffle="No")
    processing = _scoring(item)
    for choice in question.choices:
        ident = f"{question.id}_{choice.letter}"
        _material(SubElement(shown, "response_label", ident=ident), choice.text)
        condition = SubElement(processing, "respcondition", {"continue": "No"})
        variables = SubElement(condition, "conditionvar")
        SubElement(variables, "varequal", respident=RESPONSE).text = ident
        SubElement(condition, "setvar", action="Set", varname="SCORE").text = (
            "100" if choice.right else "0"
        )
        _feedback(item, condition, f"{ident}_fb", choice.feedback)


def _number(question: BankQuestion, item: Element, presentation: Element) -> None:
    response = SubElement(presentation, "response_str", ident=RESPONSE, rcardinality="Single")
    shown = SubElement(response, "render_fib", fibtype="Decimal")
    SubElement(shown, "response_label", ident=f"{question.id}_number")
    processing = _scoring(item)

    margin = abs(question.answer) * question.tolerance
    condition = SubElement(processing, "respcondition", {"continue": "No"})
    either = SubElement(SubElement(condition, "conditionvar"), "or")
    SubElement(either, "varequal", respident=RESPONSE).text = plain_number(question.answer)
    interval = SubElement(either, "and")
    for tag, bound in (("vargte", question.answer - margin), ("varlte", question.answer + margin)):
        SubElement(interval, tag, respident=RESPONSE).text = plain_number(bound)
    SubElement(condition, "setvar", action="Set", varname="SCORE").text = "100"
    _feedback(item, condition, "correct_fb", question.explanation)

    condition = SubElement(processing, "respcondition", {"continue": "Yes"})
    SubElement(SubElement(condition, "conditionvar"), "other")
    known = "".join(
        f"<li>If you answered {plain_number(mistake.value)}: {mistake.feedback}</li>"
        for mistake in question.mistakes
    )
    text = f"<p>{question.otherwise}</p>" + (f"<ul>{known}</ul>" if known else "")
    _feedback(item, condition, "general_incorrect_fb", text)


def _scoring(item: Element) -> Element:
    processing = SubElement(item, "resprocessing")
    limits = {"minvalue": "0", "maxvalue": "100", "varname": "SCORE", "vartype": "Decimal"}
    SubElement(SubElement(processing, "outcomes"), "decvar", limits)
    return processing


def _feedback(item: Element, condition: Element, ident: str, text: str) -> None:
    SubElement(condition, "displayfeedback", feedbacktype="Response", linkrefid=ident)
    _material(SubElement(SubElement(item, "itemfeedback", ident=ident), "flow_mat"), text)


def _material(parent: Element, html: str) -> None:
    SubElement(SubElement(parent, "material"), "mattext", texttype="text/html").text = html
