"""The types of a result document: real results fit them, and the JSON Schema says the same."""

import json
from pathlib import Path

import jsonschema
import pytest

from hvdgrade.result_document import NotAResult, read, schema
from tests.hvdgrade.report.test_pages import RESULTS

SCHEMA = Path(__file__).parents[2] / "assessment" / "result.schema.json"


def test_the_schema_is_that_of_the_types():
    assert json.loads(SCHEMA.read_text()) == schema()  # python -m hvdgrade.result_document > SCHEMA


@pytest.mark.parametrize("name", RESULTS)
def test_real_results_are_read_and_fit_the_schema(name):
    text = json.dumps(RESULTS[name])
    assert read(text) == json.loads(text)
    jsonschema.validate(json.loads(text), schema())


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"}, {"submission": {}}, {"submission": "ada"}, {"score": "100"}, {"score": None},
        {"verdict": "perfect"}, {"checks": {}}, {"timeline": [1]}, {"batch": []},
    ],
)  # fmt: skip
def test_what_an_export_could_not_use_is_no_result(change):
    with pytest.raises(NotAResult):
        read(json.dumps(RESULTS["fail"] | change))


@pytest.mark.parametrize("text", ["", "[]", "1", "[" * 100_000, b"\xff"])
def test_other_json_is_no_result(text):
    with pytest.raises(NotAResult):
        read(text)
