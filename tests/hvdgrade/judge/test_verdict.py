"""From the checks to the verdict: which checks run, which points they give, and what an instructor sees."""

import dataclasses
from pathlib import Path

import pytest

from hvdgrade.judge import check
from hvdgrade.judge.verdict import before_probing, judge, near_a_threshold, worth_probing
from hvdgrade.run import calibrate
from hvdgrade.submission.script import imported_modules
from tests.helpers.judged_evidence import RULES, epochs, evidence, probed, seen, states, verdict


@pytest.mark.parametrize(
    "source, expected",
    [
        (b"import torch\nimport horovod.torch as hvd", "torch"),
        (b"import keras", "keras"),
        (b"from hvdlab.keras import models", "keras"),
        (b"import tensorflow as tf", "keras"),
        (b"import keras, torch", "torch"),
        (b"print(1)", "torch"),
        (b"def f():\n    import torch\nimport keras", "torch"),
    ],
)
def test_uses_the_imported_framework_or_the_faster_of_two(source, expected):
    assert calibrate.framework(imported_modules(source)) == expected


def test_a_correct_run_passes_every_check():
    result = verdict()
    assert set(states(result).values()) == {"pass"}
    assert (result.verdict, result.score, result.max_score) == ("pass", 100, 100)
    assert result.seconds_to_target == 20.5  # when the last rank's weights arrived


@pytest.mark.parametrize(
    "changes, failed",
    [
        ({"difference": 2e-5, "differs_at": "conv1.bias"}, "replicas"),
        ({"shared": 0.76}, "shards"),
        ({"same_order": 0.51}, "shards"),
        ({"read": [25_000, 24_999]}, "steps"),
        ({"coverage": 0.94}, "steps"),
        ({"outside": 1}, "steps"),
        ({"heldout_accuracy": 0.69}, "targets"),
        ({"train_accuracy": 0.74}, "targets"),
    ],
)
@pytest.mark.parametrize("only", [None, 0, 1], ids=["always", "first epoch", "second epoch"])
def test_each_broken_rule_fails_only_its_check(changes, failed, only):
    """A rule also fails if only one epoch breaks it, because the target needs two consecutive epochs."""
    result = verdict(epochs_=epochs(only, **changes))
    lost = [id for id, state in states(result).items() if state != "pass"]
    assert lost == ([failed, "flow", "equivalence"] if failed == "replicas" else [failed])
    assert result.verdict == "fail"
    assert result.score == 100 - sum(RULES.points[id] for id in lost)
    (check,) = [check for check in result.checks if check.id == failed]
    assert check.rationale and check.help


@pytest.mark.parametrize(
    "budget, changes, near",
    [
        (30.0, {}, False),
        (21.0, {}, True),  # 20.5 s: passes, but would not with a 5 % smaller budget
        (20.0, {}, True),  # fails, but would not with a 5 % larger budget
        (19.0, {}, False),
        (30.0, {"heldout_accuracy": 0.704}, True),
        (30.0, {"heldout_accuracy": 0.696}, True),
        (30.0, {"heldout_accuracy": 0.69}, False),
        (30.0, {"train_accuracy": 0.754}, True),
        (30.0, {"train_accuracy": 0.746}, True),
        (30.0, {"train_accuracy": 0.74}, False),
        (21.0, {"difference": 1.0}, False),  # fails for another reason, so the time does not matter
    ],
)
def test_a_run_is_near_a_threshold_if_a_small_change_would_turn_it(budget, changes, near):
    assert near_a_threshold(verdict(None, epochs(**changes), budget), RULES, budget) == near


@pytest.mark.parametrize(
    "changes, failed",
    [
        ({"difference": 9e-6}, set()),
        ({"shared": 0.75, "same_order": 0.5}, set()),  # random reads of the whole set share 1/N
        ({"coverage": 0.95}, set()),
    ],
)
def test_values_at_the_limits_pass(changes, failed):
    result = verdict(epochs_=epochs(**changes))
    assert {id for id, state in states(result).items() if state != "pass"} == failed


def test_skips_the_other_checks_without_weights():
    result = verdict(seen(weights=[], stop_cause="crashed", exit_code=1), [])
    assert states(result) == {
        "ran": "fail",
        "replicas": "skipped",
        "exchange": "skipped",
        "flow": "skipped",
        "equivalence": "skipped",
        "shards": "skipped",
        "steps": "skipped",
        "targets": "skipped",
    }
    assert (result.verdict, result.score) == ("fail", 0)


def test_advice_names_the_likely_mistake():
    different = epochs(difference=0.2, differs_at="conv1.weight")

    def help(*imports):
        return verdict(seen(rounds=0), different, imports=imports).checks[1].help

    assert "never imports Horovod" in help("torch")
    assert "broadcast" in help("horovod.torch")
    assert "hvdlab.keras.horovod" in help("horovod.tensorflow.keras")


@pytest.mark.parametrize(
    "run, changes, worth",
    [
        ({}, {}, True),
        ({"rounds": None}, {}, True),  # the exchange could not be measured
        ({"rounds": 0}, {}, False),
        ({}, {"difference": 1.0}, False),
        ({"stop_cause": "crashed", "exit_code": 1}, {}, False),
    ],
)
def test_probes_only_a_run_that_passed_what_the_probe_builds_on(run, changes, worth):
    given = evidence(seen(**run), epochs(**changes))
    done = before_probing(given, RULES, 30.0)
    assert list(done) == ["ran", "replicas", "exchange"]
    assert worth_probing(done, given) is worth
    alone = seen(ranks=1, weights=[w for w in seen().weights if w.rank == 0])
    assert not worth_probing(before_probing(evidence(alone), RULES, 30.0), evidence(alone))


def test_checks_that_were_made_before_the_probe_are_not_made_again():
    early = evidence(seen(), epochs(difference=1.0))
    done = before_probing(early, RULES, 30.0)
    late = judge(evidence(probe=probed()), RULES, 30.0, done)
    assert states(late)["replicas"] == "fail"
    assert states(judge(evidence(probe=probed()), RULES, 30.0))["replicas"] == "pass"


def test_a_registered_check_needs_only_points(monkeypatch):
    monkeypatch.setattr(check, "CHECKS", dict(check.CHECKS))

    @check.check("quiet", title="prints little")
    def quiet(case: check.Case) -> check.Finding:
        printed = case.evidence.observation.output_bytes
        return check.Finding("pass" if printed < 100 else "fail", f"{printed} bytes")

    rules = dataclasses.replace(RULES, points={**RULES.points, "quiet": 7})
    for printed, state in ((0, "pass"), (100, "fail")):
        result = judge(evidence(seen(output_bytes=printed), probe=probed()), rules, 30.0)
        assert (result.checks[-1].title, result.checks[-1].state) == ("prints little", state)
        assert result.score == 100 + 7 * (state == "pass") and result.max_score == 107


def test_each_check_has_a_section_about_its_causes():
    page = (Path(__file__).parents[3] / "assessment" / "failed_checks.md").read_text()
    headings = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    titles = [definition.title for definition in check.CHECKS.values()]
    assert headings == {title[:1].upper() + title[1:] for title in titles}
    for title in titles:
        assert f'section "{title[:1].upper()}{title[1:]}"' in check.where_explained(title)
