"""A report shows no hint that its measurements refute, and each mistake once."""

import pytest

from hvdgrade.judge.check import CHECKS, Check
from hvdgrade.profiles import load
from hvdgrade.report.result import hints
from hvdlab.mistakes import MISTAKES, finding

FOUND = [
    finding("optimizer-not-wrapped", 30, "Seen."),
    finding("identical-batches", 20, "Seen."),
    finding("init-missing", None, "Seen."),
]
PASSED = "ran replicas exchange flow equivalence shards steps"


def judged(passed: str) -> list[Check]:
    """The checks of a report, of which these passed and all others failed."""
    ids = load("cpu").points
    return [Check(id, "", "pass" if id in passed.split() else "fail", 10, "") for id in ids]


@pytest.mark.parametrize(
    "passed, gone",
    [
        ("", ""),
        ("ran steps targets", ""),
        ("replicas", ""),  # N copies of the same training have equal weights too
        ("replicas exchange", "init-missing"),
        ("flow", "init-missing"),  # where the bytes are not counted
        ("equivalence", "optimizer-not-wrapped"),
        ("shards", "identical-batches"),
        (PASSED, "init-missing optimizer-not-wrapped identical-batches"),
    ],
)
def test_a_check_that_passes_refutes_its_hints(passed, gone):
    shown = {hint["mistake"] for hint in hints(FOUND, judged(passed))}
    assert {one.id for one in FOUND} - shown == set(gone.split())


def test_a_mistake_is_shown_once_in_the_order_of_lines():
    shown = hints([*FOUND, finding("init-missing", 3, "Seen.")], judged(""))
    assert [hint["line"] for hint in shown] == [3, 20, 30]


def test_a_skipped_or_partial_check_refutes_nothing():
    for state in ("skipped", "partial", "error"):
        checks = [Check(id, "", state, 10, "") for id in load("cpu").points]
        assert len(hints(FOUND, checks)) == len(FOUND)


def test_mistakes_name_checks_that_the_grader_has():
    named = {check for mistake in MISTAKES for check in mistake.refuted_by}
    assert named and named <= set(CHECKS)
