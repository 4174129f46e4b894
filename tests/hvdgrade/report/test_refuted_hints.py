"""A report shows no hint from the source that its measurements refute."""

import pytest

from hvdgrade.judge.check import CHECKS, Check
from hvdgrade.profiles import load
from hvdgrade.report.result import not_refuted
from hvdlab.hints import hints
from hvdlab.hints.catalogue import MISTAKES

LIGHTNING = b"""import lightning
from hvdlab.data import Batches
from hvdlab.torch.models import assessment_network
import torch
batches = Batches(None, None, 128)
optimizer = torch.optim.SGD(assessment_network().parameters(), lr=0.1)
optimizer.step()
print("done")
"""
PASSED = "ran replicas exchange flow equivalence shards steps"


def shown(source: bytes, passed: str) -> set[str]:
    """The mistakes that a report with these passed checks names; all other checks failed."""
    ids = load("cpu").points
    checks = [Check(id, "", "pass" if id in passed.split() else "fail", 10, "") for id in ids]
    return {hint["mistake"] for hint in not_refuted(hints(source), checks)}


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
    everything = shown(LIGHTNING, "")
    assert everything >= {"init-missing", "optimizer-not-wrapped", "identical-batches"}
    assert everything - shown(LIGHTNING, passed) == set(gone.split())


def test_a_skipped_or_partial_check_refutes_nothing():
    for state in ("skipped", "partial", "error"):
        checks = [Check(id, "", state, 10, "") for id in load("cpu").points]
        assert not_refuted(hints(LIGHTNING), checks) == hints(LIGHTNING)


def test_mistakes_name_checks_that_the_grader_has():
    named = {check for mistake in MISTAKES for check in mistake.refuted_by}
    assert named and named <= set(CHECKS)
