"""The format `junit`: a report that GitLab and most other CI servers show, with a test case per check.

Without a verdict, the report has one test case with an error, so it never looks like a failed submission.

Source: https://docs.gitlab.com/ci/testing/unit_test_reports/
"""

import argparse
from xml.etree import ElementTree

from hvdgrade.batch.results import UNGRADED
from hvdgrade.export.payload_files import write_each
from hvdgrade.output.text import plain
from hvdgrade.result_document import CheckPart, ResultDocument

OUTPUT = "junit"
# State of a check -> element of its test case.
ELEMENT = {"partial": "failure", "fail": "failure", "skipped": "skipped", "error": "error"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the format in the help text. It has no options."""
    parser.add_argument_group("junit", "OUT/junit/NAME.xml per submission: a test case per check")


def write(documents: list[ResultDocument], args: argparse.Namespace) -> list[str]:
    """Write a file per submission to the folder `args.output`; return lines for the instructor."""
    return write_each(documents, payload, args.output, "*.xml")


def payload(document: ResultDocument) -> str:
    """Return the report as XML."""
    cases = list(map(case, document["checks"])) if document["status"] == "graded" else []
    if not cases:
        kind = UNGRADED.get(document["status"], "no check")
        cases = [test_case("grading", "error", kind, document["reason"] or "")]
    seconds = (document.get("resources") or {}).get("grading_wall", 0)
    suite = ElementTree.Element("testsuite", name=name(document), time=f"{seconds:.2f}")
    suite.set("tests", str(len(cases)))
    for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(plural, str(sum(each.find(kind) is not None for each in cases)))
    suite.extend(cases)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, "unicode")}\n'


def name(document: ResultDocument) -> str:
    """Return the name of the test suite, which includes the points."""
    if document["status"] != "graded":
        return "hvdgrade"
    return f"hvdgrade: {document['score']} of {document['max_score']} points"


def case(check: CheckPart) -> ElementTree.Element:
    """Return the test case of a check."""
    return test_case(check["title"], ELEMENT.get(check["state"]), check["rationale"], check["help"])


def test_case(title: str, element: str | None, message: str, text: str) -> ElementTree.Element:
    """Return a test case; with an element, it did not pass, for the reason in `message` and `text`."""
    made = ElementTree.Element("testcase", classname="hvdgrade", name=plain(title))
    if element:
        ElementTree.SubElement(made, element, message=plain(message)).text = plain(text)
    return made
