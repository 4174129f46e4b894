"""The report says whether other programs explain that a script was late, by the numbers of the result."""

import copy
import json
from pathlib import Path

import pytest

from hvdgrade.report.budget import delay
from hvdgrade.report.pages import class_page, report_page

FAIL = json.loads((Path(__file__).parents[2] / "fixtures/results/fail.json").read_text())


def late(seconds, budget, others, state="partial", stop_cause="timeout") -> dict:
    document = copy.deepcopy(FAIL) | {"seconds_to_target": seconds}
    document["budget"] = {"seconds": budget}
    document["resources"] |= {"other_work": others, "stop_cause": stop_cause}
    for check in document["checks"]:
        check["state"] = state if check["id"] == "targets" else "pass"
        check["help"] = "Likely cause: slow."
    return document


@pytest.mark.parametrize(
    "seconds, budget, others, said, explained",
    [
        # 102 s less 4 % are 97.92 s, and 110 s less 4 % are 105.6 s.
        (102.0, 100.0, {"fraction": 0.04}, "after about 97.9 s, within 100.0 s", True),
        (110.0, 100.0, {"fraction": 0.04}, "about 105.6 s, and the budget is 100.0 s", False),
        (None, 100.0, {"fraction": 0.04}, "slower by about this fraction", False),
        (102.0, 100.0, {"fraction": None, "unknown": "no /proc"}, "not measured (no /proc)", False),
    ],
)
def test_names_the_number_and_what_it_explains(seconds, budget, others, said, explained):
    document = late(seconds, budget, others)
    found = delay(document)
    assert said in found.text and found.explained == explained
    page = report_page(document)
    assert said in page and said in class_page([document])
    assert ("If the script is late again without other programs: Likely" in page) == explained
    if others.get("fraction"):
        assert "took 4% of the processor time in the run" in found.text


def test_does_not_ask_for_another_grading_while_another_check_fails():
    document = late(102.0, 100.0, {"fraction": 0.04})
    assert "Grade the script again" in delay(document).text
    document["checks"][0]["state"] = "fail"
    assert delay(document).explained and "Grade the script again" not in delay(document).text


@pytest.mark.parametrize(
    "document",
    [
        late(102.0, 100.0, {"fraction": 0.001}),
        late(102.0, 100.0, {}),
        late(90.0, 100.0, {"fraction": 0.04}, state="pass"),
        late(None, 100.0, {"fraction": 0.04}, state="fail", stop_cause="ended"),
        {},
    ],
)
def test_says_nothing_where_other_programs_are_no_cause(document):
    assert delay(document) == ("", False)
