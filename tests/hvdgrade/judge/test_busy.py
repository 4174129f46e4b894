"""A late run on a busy machine is neither a pass nor a fail."""

import dataclasses

import pytest

from hvdgrade.evidence.observation import Calibration, Observation, OtherWork, Probe
from hvdgrade.judge.busy import MachineBusy, machine_was_busy
from hvdgrade.judge.verdict import Round, judge
from tests.helpers.judged_evidence import RULES, epochs, evidence, probed, seen

BUSY, QUIET = OtherWork(20.0, 0.4), OtherWork(0.4, 0.01)
UNKNOWN = OtherWork(unknown="there is no /proc/stat")
TIMEOUT = {"stop_cause": "timeout", "exit_code": None}


def a_round(run=BUSY, calibration=QUIET, budget=30.0, changes=None, probe=None, **of_run) -> Round:
    """Return a round in which the target was reached after 20.5 s, and all else is well."""
    observed = seen(other_work=run, **of_run)
    arrived = epochs(**(changes or {})) if observed.weights else []
    given = evidence(observed, arrived, probe=probe or probed())
    judged = judge(given, RULES, budget)
    return Round(judged, given, budget, Calibration("torch", 5.0, [100.0], calibration))


@pytest.mark.parametrize("calibration", [QUIET, BUSY], ids=["calibration quiet", "busy"])
@pytest.mark.parametrize("run", [QUIET, BUSY], ids=["run quiet", "busy"])
def test_a_late_round_is_judged_only_if_both_parts_were_quiet(run, calibration):
    late = a_round(run, calibration, budget=15.0)
    assert late.judgement.verdict == "fail"
    assert machine_was_busy(late, RULES) == (BUSY in (run, calibration))
    assert not machine_was_busy(a_round(run, calibration, budget=30.0), RULES)  # in time: it passes


@pytest.mark.parametrize("above", [False, True])
def test_the_limit_is_in_the_profile(above):
    limit = RULES.max_other_work
    assert 0 < limit < 0.2
    fraction = limit + (0.001 if above else 0.0)
    assert machine_was_busy(a_round(OtherWork(1.0, fraction), budget=15.0), RULES) == above


def test_a_machine_that_does_not_show_what_others_use_changes_nothing():
    assert not machine_was_busy(a_round(UNKNOWN, UNKNOWN, budget=15.0), RULES)
    assert not machine_was_busy(dataclasses.replace(a_round(UNKNOWN), calibration=None), RULES)


@pytest.mark.parametrize(
    "of_run, changes, busy",
    [
        (TIMEOUT, {"heldout_accuracy": 0.3}, True),  # it was ended before it reached the target
        ({}, {"heldout_accuracy": 0.3}, False),  # it has ended: more time would not have helped
        ({**TIMEOUT, "weights": []}, {}, True),  # no epoch was recorded in time
        ({**TIMEOUT, "weights": [], "refused": ["rank 0: a link"]}, {}, False),
        ({"weights": []}, {}, False),
        ({"stop_cause": "hang", "weights": []}, {}, False),
        ({"stop_cause": "crashed", "exit_code": 1}, {"heldout_accuracy": 0.3}, False),
        (TIMEOUT, {"heldout_accuracy": 0.3, "difference": 1.0}, False),  # it is also wrong
        (TIMEOUT, {"heldout_accuracy": 0.3, "coverage": 0.5}, False),
    ],
)
def test_only_failures_that_more_time_could_prevent_are_excused(of_run, changes, busy):
    found = a_round(changes=changes, **of_run)
    assert found.judgement.verdict == "fail"
    assert machine_was_busy(found, RULES) == busy


@pytest.mark.parametrize(
    "cause, others, refused, busy",
    [
        ("timeout", BUSY, [], True),
        ("timeout", QUIET, [], False),
        ("hang", BUSY, [], False),
        ("timeout", BUSY, ["rank 0: not the network"], False),
    ],
)
def test_a_probe_that_is_late_on_a_busy_machine_is_no_fail(cause, others, refused, busy):
    failed = Observation(2, stop_cause=cause, other_work=others)
    found = a_round(QUIET, probe=probed(Probe(failed=failed), refused=refused))
    assert found.judgement.verdict == "fail"
    assert machine_was_busy(found, RULES) == busy


def test_the_reason_names_what_others_took_in_each_round():
    rounds = [a_round(OtherWork(1.0, fraction), budget=15.0) for fraction in (0.07, 0.33, 0.5)]
    said = str(MachineBusy(rounds))
    assert said.startswith("the machine was busy: ")
    assert "in 3 rounds" in said and "7%, 33%, 50% of the processor time" in said
