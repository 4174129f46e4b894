"""The target and its time: each rule on a case that is small enough to compute by hand."""

import pytest

from hvdgrade.judge import timeline
from hvdgrade.judge.verdict import Judgement, judge
from tests.helpers.judged_evidence import RULES, entry, epochs, evidence, seen, states, verdict


@pytest.mark.parametrize(
    "entries, expected",
    [
        ([], None),
        ([entry(0, 10, 0.8, 0.8)], None),
        ([entry(0, 10, 0.8, 0.8), entry(1, 20, 0.8, 0.8)], 20),
        ([entry(0, 10, 0.75, 0.70), entry(1, 20, 0.75, 0.70)], 20),
        ([entry(0, 10, 0.8, 0.8), entry(1, 20, 0.7499, 0.8), entry(2, 30, 0.8, 0.8)], None),
        ([entry(0, 10, 0.8, 0.6), entry(1, 20, 0.8, 0.7), entry(2, 30, 0.8, 0.7)], 30),
        # epochs 0 and 2 are not consecutive
        ([entry(0, 10, 0.8, 0.8), entry(2, 30, 0.8, 0.8)], None),
        ([entry(0, 10, 0.8, 0.8), entry(2, 30, 0.8, 0.8), entry(3, 40, 0.8, 0.8)], 40),
        # epoch 1's files arrived before epoch 0's, so the later arrival counts
        ([entry(0, 25, 0.8, 0.8), entry(1, 20, 0.8, 0.8)], 25),
    ],
)
def test_the_target_needs_two_consecutive_epochs(entries, expected):
    assert timeline.seconds_to_target(entries, RULES) == expected


def test_one_second_too_late_fails():
    assert verdict(budget=20.5).verdict == "pass"
    late = verdict(budget=20.4)
    assert late.verdict == "fail" and states(late)["targets"] == "partial"
    assert "only after 20.5 s" in late.checks[-1].rationale


def test_a_late_target_earns_partial_points():
    late = verdict(budget=20.4)
    assert states(late)["targets"] == "partial" and late.verdict == "fail"
    assert late.checks[-1].points == RULES.points["targets"] // 4


def test_advice_distinguishes_too_slow_from_too_inaccurate():
    def help(budget: float, only: int | None, **changes) -> str:
        return verdict(epochs_=epochs(only, **changes), budget=budget).checks[-1].help

    # Only the second of two epochs is good, at 20.5 s of the budget.
    assert "the batch of a rank is small" in help(30.0, 0, train_accuracy=0.6)
    enough = help(31.0, 0, train_accuracy=0.6)
    assert enough.startswith("The last epoch reached the accuracy, and 2 consecutive epochs must.")
    assert "ended 10 s before the end of the budget, and an epoch takes 10 s" in enough
    assert "learning rate does not suit" in help(31.0, None, train_accuracy=0.6)
    assert "not stable" in help(31.0, 1, train_accuracy=0.6)  # the first epoch is good


def serial(**unmeasured) -> Judgement:
    """Judge a run of two copies of a serial script, which send no message and reach the target in time."""
    copies = evidence(
        seen(**{"rounds": 0, **unmeasured}), epochs(read=[0, 0], coverage=0.0), imports=("torch",)
    )
    return judge(copies, RULES, 30.0)


def test_a_serial_script_earns_at_most_forty_per_cent():
    result = serial()
    assert states(result)["exchange"] == "fail" and states(result)["targets"] == "skipped"
    assert result.max_score == 100 and result.score <= 40
    # Where bytes cannot be counted, the probe must show that the ranks train together.
    unmeasured = serial(rounds=None)
    assert states(unmeasured)["exchange"] == states(unmeasured)["targets"] == "skipped"
    assert unmeasured.max_score == 90 and unmeasured.score <= 0.4 * 90


def test_a_run_that_is_too_slow_loses_only_the_points_of_the_target():
    late = verdict(seen(seconds=90.0, stop_cause="timeout"), budget=10.0)
    assert [id for id, state in states(late).items() if state != "pass"] == ["targets"]
