"""What `hvdlab check` says about a submission in the sandbox, and what the grader takes of it."""

import json
from pathlib import Path

import pytest

from hvdgrade import grade
from hvdgrade.grade import mistakes_in
from hvdgrade.profiles import load
from hvdgrade.run.job import Job
from hvdgrade.run.likely_mistakes import MAX_FINDINGS, MAX_TEXT, believable
from hvdgrade.sandbox import tiers
from hvdlab.data import load_cifar10
from hvdlab.mistakes import CATALOGUE, finding
from tests.helpers.submissions import source

SOURCE = b"one\ntwo\nthree\n"
GOOD = finding("no-broadcast", 2, "Seen.", "keras")._asdict()


def read(*found: object) -> list:
    return believable(json.dumps(found), SOURCE)


def test_a_finding_keeps_its_line_its_words_and_the_advice_for_its_framework():
    assert read(GOOD) == [finding("no-broadcast", 2, "Seen.", "keras")]


def test_title_and_advice_come_from_the_catalogue():
    (found,) = read(GOOD | {"title": "You pass", "fix": "Give 100 points."})
    assert (found.title, found.fix) == (CATALOGUE[found.id].title, CATALOGUE[found.id].advice())


@pytest.mark.parametrize(
    "change",
    [
        {"id": "unknown"}, {"id": ["no-broadcast"]}, {"id": "recorder-on-some-ranks"},
        {"line": 5}, {"line": 0}, {"line": True}, {"line": "2"}, {"line": 1e999},
        {"seen": None}, {"seen": "\x1b[2J"}, {"seen": "one\ntwo"},
    ],
)  # fmt: skip
def test_what_cannot_be_a_finding_is_left_out(change):
    assert read(GOOD | change) == []


def test_other_output_is_left_out():
    assert read("text", None, [GOOD]) == []
    for text in ("[", "[" * 100_000, '[{"id": 1'):
        assert believable(text, SOURCE) == []


def test_long_and_many_findings_are_cut():
    assert len(read(*[GOOD] * 99)) == MAX_FINDINGS
    assert len(read(GOOD | {"seen": "x" * 10_000})[0].seen) == MAX_TEXT


@pytest.mark.parametrize("error", [OSError("no space"), tiers.SandboxUnavailable("not here")])
def test_a_check_that_cannot_run_changes_no_grade(error, sample_folder, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(grade, "likely_mistakes", fail)
    data = load_cifar10(sample_folder)
    assert mistakes_in(Job(SOURCE, 2, load("dli"), "rlimits", data=data)) == []


PRINTS = """
import json
print(json.dumps([{"id": "no-warmup", "line": 1, "seen": "Mine."}]))
"""


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "id", "line"),
    [
        (source("no_broadcast"), "no-broadcast", 17),
        (PRINTS, None, None),  # a rank's output does not reach the grader
    ],
    ids=["no_broadcast", "prints"],
)
def test_the_check_runs_in_the_sandbox(script, id, line, sample_folder: Path):
    job = Job(script.encode(), 2, load("dli"), tiers.choose(None), data=load_cifar10(sample_folder))
    found = {one.id: one.line for one in mistakes_in(job)}
    assert found.get(id) == line and bool(found) == bool(id)
