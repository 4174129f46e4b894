"""From observations to checks: each rule on a case that is small enough to compute by hand."""

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hvdgrade import profiles
from hvdgrade.evidence import observation
from hvdgrade.evidence.evidence import (
    UNKNOWN_BATCH,
    UNMOVED,
    EpochEvidence,
    Evidence,
    LearnedClasses,
    ProbeEvidence,
    batch_size,
)
from hvdgrade.judge import check, parallel_checks, timeline, traffic
from hvdgrade.judge.verdict import Judgement, before_probing, judge, near_a_threshold, worth_probing
from hvdgrade.record_limits import ASSESSMENT_LIMITS
from hvdgrade.run import calibrate, captured_output, collect
from hvdgrade.submission.script import imported_modules
from hvdgrade.submission.script_facts import Place, ScriptFacts

RULES = dataclasses.replace(profiles.load("dli"), train_accuracy=0.75, heldout_accuracy=0.70)


def entry(epoch, seconds, train, heldout) -> timeline.Entry:
    return timeline.Entry(seconds, epoch, train, heldout)


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


STEPS = 100
ROUND = 2 * 392_106 * 4  # bytes that two ranks send to average 392,106 gradients once


def seen(rounds: float | None = STEPS, **changes) -> observation.Observation:
    """Return an observation of two ranks and two epochs.

    The weights of rank 0 arrive at 10 and 20 s, and those of rank 1 half a second later. In each epoch
    `rounds` all-reduces of all gradients were sent.
    """
    weights = [
        observation.Weights(
            *(rank, epoch, 10.0 * (epoch + 1) + 0.5 * rank, Path("x"), f"{rank}{epoch}"),
            None if rounds is None else int((epoch + 1) * rounds * ROUND),
        )
        for rank in range(2)
        for epoch in range(2)
    ]
    return dataclasses.replace(
        observation.Observation(2, exit_code=0, seconds=25.0, weights=weights), **changes
    )


def epochs(only=None, **changes) -> list[EpochEvidence]:
    """Two epochs in which all is well, but for `changes` in both, or in `only` one of them."""
    well = EpochEvidence(
        epoch=0,
        weights="x",
        train_accuracy=0.8,
        heldout_accuracy=0.75,
        difference=0.0,
        differs_at="",
        differing_rank=1,
        read=[25_000, 25_000],
        outside=0,
        coverage=1.0,
        shared=0.0,
        same_order=0.0,
        steps=STEPS,
        batch_size=250,
    )
    return [
        dataclasses.replace(well, epoch=epoch, **(changes if only in (None, epoch) else {}))
        for epoch in range(2)
    ]


def learned(*others: float, own: float = 0.2) -> list[LearnedClasses]:
    return [LearnedClasses(learned=own, others=rank) for rank in others or (1.0, 1.0)]


def probed(run: observation.Probe | None = None, **changes) -> ProbeEvidence:
    """A probe in which two ranks reach nearly the weights of a single process, but for `changes`."""
    well = {"flow": learned(), "distance": 1e-7, "first_distance": 1e-7}
    return ProbeEvidence(run or observation.Probe(), **{**well, **changes})


def evidence(run=None, epochs_=None, imports=("horovod.torch",), **more) -> Evidence:
    given = epochs() if epochs_ is None else epochs_
    return Evidence(run or seen(), given, script=ScriptFacts(frozenset(imports)), **more)


def states(judgement: Judgement) -> dict[str, str]:
    return {check.id: check.state for check in judgement.checks}


def verdict(
    seen_=None, epochs_=None, budget=30.0, imports=("horovod.torch",), probe_=None, **found
) -> Judgement:
    probe = probed(probe_, **found)
    return judge(evidence(seen_, epochs_, imports, probe=probe), RULES, budget)


def run_check(id: str, given: Evidence) -> check.Check:
    """The result of one check, as if the checks on which it depends had passed."""
    passed = {base: check.Check(base, "", "pass", 1, "") for base in check.CHECKS[id].depends_on}
    return check.run_check(id, check.Case(given, RULES, 30.0), passed)


def test_a_correct_run_passes_every_check():
    result = verdict()
    assert set(states(result).values()) == {"pass"}
    assert (result.verdict, result.score, result.max_score) == ("pass", 100, 100)
    assert result.seconds_to_target == 20.5  # when the last rank's weights arrived


@pytest.mark.parametrize("read", [750, 1500, 4096])
def test_takes_the_batch_size_from_the_record(read):
    """The last batch may have fewer images: batches of 379 to 384 make 66 steps of 25,000 images."""
    for batch in range(1, read + 1):
        steps = -(-read // batch)
        assert batch_size(epochs(read=[read, read], steps=steps, batch_size=batch)) == batch


def test_no_batch_has_more_images_than_were_read():
    claimed = epochs(read=[2500, 2500], steps=1, batch_size=1_000_000)
    assert batch_size(claimed) == 2500


@pytest.mark.parametrize("steps, claimed", [(1, 200_000), (1, None), (None, 200_000)])
def test_a_claim_does_not_make_the_probe_larger_than_the_training_set(steps, claimed):
    """The weight file of a hostile script may list 200,000 examples."""
    read = [200_000, 200_000]
    given = epochs(read=read, outside=375_000, steps=steps, batch_size=claimed)
    assert batch_size(given) <= 4096 and batch_size(given, 1500) <= 1500


@pytest.mark.parametrize("said", [None, 1, 385, 25_000])
def test_ignores_a_batch_size_that_does_not_fit_the_steps(said):
    assert batch_size(epochs(read=[25_000, 25_000], steps=66, batch_size=said)) == 379
    silent = epochs(read=[25_000, 25_000], steps=None, batch_size=said)
    assert batch_size(silent) == UNKNOWN_BATCH


@pytest.mark.parametrize("pass_seconds, state", [(None, "pass"), (33, "pass"), (34, "fail")])
def test_an_epoch_must_take_a_minimum_time(pass_seconds, state):
    """The second epoch took 10 s, which is 30 % of 33.3 s."""
    given = evidence(probe=probed(), pass_seconds=pass_seconds)
    check = judge(given, RULES, 30.0).checks[6]
    assert (check.id, check.state) == ("steps", state)
    if state == "fail":
        assert check.rationale.startswith("epoch 1 took 10.0 s, and 2 processes that train on this")


def run_of_probe(*rounds: float) -> observation.Observation:
    """Return a run in which two ranks have exchanged so many rounds of gradients by the end of each epoch."""
    weights = [
        observation.Weights(rank, epoch, 1.0, Path("x"), "", int(sum(rounds[: epoch + 1]) * ROUND))
        for rank in range(2)
        for epoch in range(len(rounds))
    ]
    return observation.Observation(2, weights=weights)


# The graded run has 1 round per step, the probe 4 steps per epoch. The first epoch includes the start.
@pytest.mark.parametrize(
    "apart, together, distance, words",
    [
        ((9, 8, 8), (9, 8, 8), 1e-7, ""),  # float64: twice as many bytes
        ((9, 4, 4), (9, 4, 4), 0.06, ""),  # float16, or another network
        ((9, 13.9, 13.9), (9, 13.9, 13.9), 0.002, ""),
        ((9, 14.1, 14.1), (9, 14.1, 14.1), 0.002, "they exchange 3.5 times as many bytes"),
        ((9, 24, 24), (9, 24, 24), 0, "6.0 times as many bytes"),  # recognises the probe
        (
            (9, 1, 1),
            (9, 1.21, 1.21),
            1e-7,
            "with batches 2 times as large the ranks exchange 1.2 times as many bytes",
        ),
        ((9, 1, 1.2), (9, 1.0, 1.4), 1e-7, ""),  # bytes of one epoch were counted in another
        # The counter was read late, as observed once with a correct script.
        ((9, 3.63, 3.63), (9, 4.01, 4.01), 0.004, ""),
        ((9,), (9,), 0.002, ""),  # nothing to count
    ],
)
def test_compares_the_exchange_of_run_and_probe(apart, together, distance, words):
    runs = {"apart": run_of_probe(*apart), "together": run_of_probe(*together)}
    result = verdict(probe_=observation.Probe(seen=runs), distance=distance)
    (check,) = [check for check in result.checks if check.id == "equivalence"]
    assert check.state == ("fail" if words else "pass")
    assert words in check.rationale


def test_the_exchange_may_decrease_from_epoch_to_epoch():
    """A batch may grow by accumulation of gradients. Its first epochs are as in the probe."""
    run = seen()
    for one in run.weights:
        one.bytes_on_wire = int((1.0, 2.0, 2.1)[one.epoch] * STEPS * ROUND)
    runs = dict.fromkeys(("apart", "together"), run_of_probe(9, 8, 8))
    probe = observation.Probe(seen=runs)
    assert traffic.exchange_drop(run, epochs(), probe, RULES) == 2.0
    less = dataclasses.replace(run, weights=seen(rounds=None).weights)
    assert traffic.exchange_drop(less, epochs(), probe, RULES) is None


@pytest.mark.parametrize(
    "recorded, state",
    [
        (({0, 1, 2}, {0, 1, 2}), "pass"),
        (({0, 1, 2}, {0, 1}), "pass"),  # the run ended between the records of two ranks
        (({1, 2}, {0, 1, 2}), "fail"),  # otherwise the start of the ranks would not be compared
        (({0, 2, 3}, {0, 1, 2, 3}), "fail"),
        (({0, 1, 2, 3}, {0, 1}), "fail"),
    ],
)
def test_ranks_must_record_the_same_epochs(recorded, state):
    run = seen()
    one = run.weights[0]
    run.weights = [
        dataclasses.replace(one, rank=rank, epoch=epoch)
        for rank, of_rank in enumerate(recorded)
        for epoch in of_rank
    ]
    result = run_check("ran", evidence(run))
    assert result.state == state
    if state == "fail":
        assert "the ranks recorded different epochs" in result.rationale


@pytest.mark.parametrize(
    "steps, drop", [(400, 64), (100, 16), (7, 1.12), (6, 0.977), (None, 0.977)]
)
def test_a_claim_of_few_steps_does_not_raise_the_exchange_per_step(steps, drop):
    """The run averages weights 12.5 times in an epoch of 25,000 images; the probe averages gradients."""
    runs = dict.fromkeys(("apart", "together"), run_of_probe(8, 8, 8))
    probe = observation.Probe(seen=runs)
    found = traffic.exchange_drop(seen(rounds=12.5), epochs(steps=steps), probe, RULES)
    assert found == pytest.approx(drop, rel=0.01)


@pytest.mark.parametrize(
    "stop_cause, found, again",
    [
        ("crashed", {}, True),
        ("hang", {}, False),
        ("", {"refused": ["rank 0: conv1.weight is not finite"]}, True),
        ("", {"first_distance": 5.7, "distance": 5.7}, True),
        ("", {"first_distance": 0.08, "distance": 0.08}, True),
        ("", {"first_distance": 0.06, "distance": 0.06}, False),
        ("", {"first_distance": 1e-9, "distance": 0.6}, False),  # correct only in its first epoch
        (
            "",
            {"first_distance": UNMOVED, "distance": UNMOVED},
            False,
        ),
    ],
)
def test_repeats_the_probe_in_float32_if_float64_may_have_failed(stop_cause, found, again):
    failed = dataclasses.replace(seen(), stop_cause=stop_cause) if stop_cause else None
    probe = ProbeEvidence(observation.Probe(failed=failed), **found)
    assert parallel_checks.may_suit_float32_only(probe, RULES) is again


def test_a_copy_has_the_time_at_which_it_was_complete(tmp_path, monkeypatch):
    """A file that appears while others are copied has no earlier time."""
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "evidence").mkdir()
    for epoch in range(3):
        (tmp_path / "rank-0" / f"epoch-{epoch:03d}.npz").write_bytes(b"x")
    copy = collect.copy_file

    def slow(directory, name, *rest):
        time.sleep(0.2 if name.endswith("npz") else 0)
        return copy(directory, name, *rest)

    monkeypatch.setattr(collect, "copy_file", slow)
    jail = SimpleNamespace(
        ranks=1,
        records=tmp_path,
        network_bytes=lambda: 7,
        record_limits=ASSESSMENT_LIMITS,
        most_records=1 << 30,
    )
    run = observation.Observation(1, started=time.monotonic())
    assert collect.collect(jail, tmp_path / "evidence", run)
    times = sorted(one.seconds for one in run.weights)
    assert times[0] >= 0.2 and times[1] >= 0.4 and times[2] >= 0.6


def test_one_second_too_late_fails():
    assert verdict(budget=20.5).verdict == "pass"
    late = verdict(budget=20.4)
    assert late.verdict == "fail" and states(late)["targets"] == "partial"
    assert "only after 20.5 s" in late.checks[-1].rationale


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


def test_the_size_of_a_round_follows_from_the_network():
    from hvdlab.torch.models import assessment_network

    for network in ("assessment-net", "wrn-10-1"):
        parameters = sum(p.numel() for p in assessment_network(network).parameters())
        assert traffic.gradient_bytes(network) == 4 * parameters
    run = seen(rounds=7.5)
    assert traffic.exchanges(run, [0, 1], RULES) == [7.5, 7.5]
    wide = dataclasses.replace(
        RULES, network="wrn-10-1"
    )  # the same bytes are more rounds of fewer weights
    rounds = 7.5 * 392_106 / 77_850
    assert traffic.exchanges(run, [0, 1], wide) == pytest.approx([rounds, rounds])


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_an_all_reduce_is_one_round_for_any_number_of_ranks(ranks):
    """In a ring all-reduce each of N ranks sends a chunk of 1/N to its neighbour 2 (N - 1) times."""
    sent = sum(4 * 392_106 / ranks for _ in range(ranks) for _ in range(2 * (ranks - 1)))
    weights = [
        observation.Weights(rank, 0, 1.0, Path("x"), "", round(7 * sent)) for rank in range(ranks)
    ]
    run = observation.Observation(ranks, weights=weights)
    assert traffic.exchanges(run, [0], RULES) == pytest.approx([7])


@pytest.mark.parametrize(
    "rounds, state",
    [
        (100, "pass"),
        (50, "pass"),  # half the bytes: gradients in float16
        (6, "pass"),  # gradients are accumulated over 16 steps
        (2.9, "fail"),  # 3 % of 100 steps
        (1, "fail"),  # weights averaged once an epoch
        (0, "fail"),
    ],
)
def test_the_exchange_check_requires_the_bytes_of_averaged_gradients(rounds, state):
    result = verdict(seen(rounds=rounds))
    assert states(result)["exchange"] == state
    assert result.verdict == ("pass" if state == "pass" else "fail")


@pytest.mark.parametrize(
    "rounds, state",
    [
        ((0, 100, 100), "pass"),  # the first epoch includes the start, before or in it
        ((900, 100, 0), "fail"),
        ((900, 0, 100), "fail"),
    ],
)
def test_the_exchange_check_uses_the_epoch_with_the_least_bytes(rounds, state):
    """A script whose ranks train separately for one epoch cannot compensate for it in another."""
    run = run_of_probe(*rounds)
    three = [dataclasses.replace(epochs()[0], epoch=epoch) for epoch in range(3)]
    assert run_check("exchange", evidence(run, three)).state == state


@pytest.mark.parametrize(
    "read, steps, rounds, state",
    [
        (782, 9, 2, "pass"),  # 64 ranks: accumulated over four steps of 96 images each
        (782, 4, 4, "pass"),
        (782, 4, 2, "pass"),  # in float16
        # Accumulated over four steps, or weights averaged: the probe distinguishes them.
        (782, 4, 1, "pass"),
        (782, 4, 0.5, "fail"),
        (782, 2, 2, "pass"),
        (782, 1, 0.25, "fail"),  # less than two steps of 512 images
        (782, 0, 0.25, "fail"),
        (782, 0, 0, "fail"),
        (25_000, 24, 2.6, "pass"),
        (25_000, 24, 1, "fail"),  # weights averaged once an epoch
        (25_000, 13, 2.4, "fail"),
        (25_000, 4, 4, "pass"),
        (25_000, 4, 1, "fail"),  # although it claims few steps
        (25_000, 1, 1, "fail"),
        (25_000, 0, 0, "fail"),
        (1_500, 0, 0, "fail"),
    ],
)
def test_few_steps_need_few_rounds(read, steps, rounds, state):
    found = epochs(read=[read, read], steps=steps)
    assert states(verdict(seen(rounds=rounds), found))["exchange"] == state


@pytest.mark.parametrize(
    "rounds, steps, help",
    [
        (2, 2, "Use at most 512 images in a rank's batch"),
        (0, 2, "the gradients are not averaged"),
        (0, 0, "the gradients are not averaged"),
        (1, 24, "the gradients are not averaged"),
    ],
)
def test_reports_too_few_steps_for_the_exchange_check(rounds, steps, help):
    result = verdict(seen(rounds=rounds), epochs(steps=steps))
    (check,) = (check for check in result.checks if check.id == "exchange")
    assert check.state == "fail" and help in check.help


def test_skips_the_exchange_check_without_byte_counts():
    result = verdict(seen(rounds=None))
    assert states(result)["exchange"] == "skipped"
    assert (result.verdict, result.score, result.max_score) == ("pass", 90, 90)


@pytest.mark.parametrize(
    "found, failed",
    [
        ({"flow": learned(0.41, 0.41)}, None),
        ({"flow": learned(0.39, 0.39)}, "flow"),
        ({"flow": learned(1.0, 0.01)}, "flow"),  # one rank only
        ({"flow": learned(0.01, 1.0)}, "flow"),
        ({"flow": [LearnedClasses(x, 1.0) for x in (0.001, 0.07)]}, "flow"),  # 0.0355 each
        ({"flow": learned(own=0.039)}, "flow"),  # nothing was learned: nothing is shown
        ({"flow": [LearnedClasses(x, 1.0) for x in (0.01, 0.08)]}, None),
        ({"distance": 0.069}, None),
        ({"distance": 0.071}, "equivalence"),
    ],
)
def test_the_probe_has_two_limits(found, failed):
    result = verdict(**found)
    assert [id for id, state in states(result).items() if state != "pass"] == [failed] * bool(
        failed
    )


@pytest.mark.parametrize(
    "ranks, own, state",
    [
        (2, 0.039, "fail"),
        (4, 0.039, "fail"),
        (5, 0.021, "pass"),
        (8, 0.019, "fail"),
        (64, 0.004, "pass"),
    ],
)
def test_the_flow_limit_allows_for_classes_that_several_ranks_have(ranks, own, state):
    run = observation.Observation(ranks)
    found = probed(flow=[LearnedClasses(own, 1.0)] * ranks)
    assert run_check("flow", evidence(run, probe=found)).state == state


def test_a_failed_probe_fails_with_its_error():
    crashed = observation.Observation(
        2,
        stop_cause="crashed",
        output="[1,1]<stderr>: Traceback (most recent call last):\n[1,1]<stderr>: IndexError: 50000",
    )
    result = verdict(probe_=observation.Probe(failed=crashed))
    assert states(result)["flow"] == states(result)["equivalence"] == "fail"
    assert "rank 1 says: IndexError: 50000" in result.checks[3].help


def test_a_late_target_earns_partial_points():
    late = verdict(budget=20.4)
    assert states(late)["targets"] == "partial" and late.verdict == "fail"
    assert late.checks[-1].points == RULES.points["targets"] // 4


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


def test_a_crash_after_the_target_still_fails():
    result = verdict(seen(stop_cause="crashed", exit_code=1))
    assert result.verdict == "fail" and states(result)["ran"] == "fail"


def test_being_ended_at_the_limit_after_the_target_passes():
    assert verdict(seen(stop_cause="timeout", exit_code=None)).verdict == "pass"


def test_advice_names_the_likely_mistake():
    different = epochs(difference=0.2, differs_at="conv1.weight")

    def help(*imports):
        return verdict(epochs_=different, imports=imports).checks[1].help

    assert "never imports Horovod" in help("torch")
    assert "broadcast" in help("horovod.torch")
    assert "hvdlab.keras.horovod" in help("horovod.tensorflow.keras")


def test_advice_distinguishes_too_slow_from_too_inaccurate():
    def help(budget: float, only: int | None, **changes) -> str:
        return verdict(epochs_=epochs(only, **changes), budget=budget).checks[-1].help

    # Only the second of two epochs is good, at 20.5 s of the budget.
    assert "1/N" in help(30.0, 0, train_accuracy=0.6)
    enough = help(31.0, 0, train_accuracy=0.6)
    assert enough.startswith("The last epoch reached the accuracy, and 2 consecutive epochs must.")
    assert "ended 10 s before the end of the budget, and an epoch takes 10 s" in enough
    assert "learning rate does not suit" in help(31.0, None, train_accuracy=0.6)
    assert "not stable" in help(31.0, 1, train_accuracy=0.6)  # the first epoch is good


def test_a_single_rank_cannot_pass():
    alone = seen(ranks=1, weights=[w for w in seen().weights if w.rank == 0])
    result = verdict(alone, epochs(read=[50_000]))
    assert states(result)["replicas"] == "skipped" and result.verdict == "fail"


def test_separates_stacks_by_rank():
    output = "\n".join(
        [
            "[1,0]<stderr>: Fatal Python error: Aborted",
            "[1,1]<stderr>: Fatal Python error: Aborted",
            "[1,0]<stderr>: Thread 0x1 (most recent call first):",
            '[1,0]<stderr>:   File "/usr/lib/threading.py", line 5 in wait',
            "[1,0]<stderr>: Current thread 0x2 (most recent call first):",
            "[1,1]<stderr>: Current thread 0x2 (most recent call first):",
            '[1,0]<stderr>:   File "/x/mpi_ops.py", line 9 in synchronize',
            '[1,1]<stderr>:   File "/tmp/a b/assessment.py", line 7 in <module>',
            '[1,0]<stderr>:   File "/tmp/a b/assessment.py", line 3 in train',
            "[1,0]<stderr>: ",
            "[1,0]<stderr>: Extension modules: numpy",
        ]
    )
    assert captured_output.stacks(output) == {
        0: "mpi_ops.py, line 9, in synchronize\nassessment.py, line 3, in train",
        1: "assessment.py, line 7, in <module>",
    }


@pytest.mark.parametrize("tag", [">: ", ">:"], ids=["Open MPI 5", "Open MPI 4"])
def test_quotes_the_first_traceback_with_its_rank(tag):
    output = "\n".join(
        [
            "[1,1]<stderr>: Traceback (most recent call last):",
            "[1,0]<stderr>: a warning of another rank, in between",
            '[1,1]<stderr>:   File "assessment.py", line 3, in <module>',
            "[1,1]<stderr>: ValueError: 3 images, 4 labels",
            "[1,0]<stderr>: Traceback (most recent call last):",
            "[1,0]<stderr>: horovod.common.exceptions.HorovodInternalError: shut down",
        ]
    )
    output = output.replace(">: ", tag)
    assert check.last_error(output) == "rank 1 says: ValueError: 3 images, 4 labels"
    assert check.last_error("nothing of the kind") == ""


def test_output_is_limited_counted_and_sanitised(tmp_path):
    output = captured_output.CapturedOutput()
    with open(tmp_path / "printed", "wb") as file:
        file.write(b"begin \x1b[31mred\x07\n" + b"x" * 1_000_000 + b"\nend\n")
    with open(tmp_path / "printed", "rb") as file:
        while not output.closed:
            output.read(file)
    text = output.text()
    assert output.bytes == (tmp_path / "printed").stat().st_size
    assert len(text) < captured_output.KEEP_OUTPUT_BYTES + 100
    assert text.startswith("begin [31mred\n") and text.endswith("\nend\n")
    assert "bytes left out" in text and "\x1b" not in text


def test_advises_batches_epoch_if_every_epoch_reads_epoch_0():
    """In a second `fit` of the same data set, Keras reads epoch 0 again."""
    nothing = {"read": [0, 0], "coverage": 0.0}
    for only, told in ((1, True), (0, False)):
        checked = {c.id: c for c in verdict(epochs_=epochs(only, **nothing)).checks}
        assert checked["steps"].state == "fail"
        assert ("reads the same epoch again" in checked["steps"].help) == told


def test_a_script_that_does_not_read_from_batches_loses_the_points_of_one_check():
    """The grader cannot judge which images its ranks read, and the probe works only with `Batches`."""
    given = evidence(epochs_=epochs(read=[0, 0], coverage=0.0))
    done = before_probing(given, RULES, 30.0)
    assert not worth_probing(done, given)
    result = judge(given, RULES, 30.0, done)
    assert {id for id, state in states(result).items() if state == "fail"} == {"steps"}
    assert (result.verdict, result.score, result.max_score) == ("fail", 65, 70)
    help = {check.id: check.help for check in result.checks}["steps"]
    assert help.startswith(
        "Likely causes: (1) batches.epoch(epoch) and recorder.epoch_end(epoch) are"
    )
    reader = dataclasses.replace(given, script=ScriptFacts(reader=Place(7, "DataLoader")))
    help = {check.id: check.help for check in judge(reader, RULES, 30.0).checks}["steps"]
    assert help.startswith("Likely causes: (1) line 7 (DataLoader) reads the images")


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


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_quotes_the_error_of_a_traceback_under_torch_distributed(prefix):
    """PyTorch begins each line of a traceback with its rank after `init_process_group`."""
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 41, in <module>']
    lines = [*traceback, "    step()", "ValueError: no batch"]
    output = "\n".join(f"[1,0]<stderr>: {prefix}{line}" for line in lines)
    assert check.last_error(output) == "rank 0 says: ValueError: no batch"


def test_each_check_has_a_section_about_its_causes():
    page = (Path(__file__).parents[3] / "assessment" / "failed_checks.md").read_text()
    headings = {line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")}
    titles = [definition.title for definition in check.CHECKS.values()]
    assert headings == {title[:1].upper() + title[1:] for title in titles}
    for title in titles:
        assert f'section "{title[:1].upper()}{title[1:]}"' in check.where_explained(title)


@pytest.mark.parametrize(
    "facts, first",
    [
        (
            ScriptFacts(adasum=Place(5, "Adasum"), random=Place(3, "x.random")),
            "line 5 (Adasum) does",
        ),
        (ScriptFacts(reader=Place(5, "DataLoader")), "line 5 (DataLoader) reads the images"),
        (ScriptFacts(sum_loss=Place(5, "reduction=sum")), "line 5 (reduction=sum) sums"),
        (ScriptFacts(random=Place(5, "torch.randn")), "line 5 (torch.randn) makes the runs random"),
        (ScriptFacts(), "the script averages weights now and then"),
    ],
)
def test_names_the_most_likely_cause_of_a_difference_first(facts, first):
    given = dataclasses.replace(evidence(probe=probed(distance=0.3)), script=facts)
    help = run_check("equivalence", given).help
    assert help.startswith(f"Likely causes: (1) {first}") and "; (2) " in help and "(3)" not in help
