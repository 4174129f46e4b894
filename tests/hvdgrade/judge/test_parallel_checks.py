"""Equal weights, bytes of the exchange, and the probe: each rule on a case that can be computed by hand."""

import dataclasses
from pathlib import Path

import pytest

from hvdgrade.evidence import observation
from hvdgrade.evidence.evidence import (
    UNMOVED,
    LearnedClasses,
    ProbeEvidence,
)
from hvdgrade.judge import parallel_checks, traffic
from hvdgrade.submission.script_facts import Place, ScriptFacts
from tests.helpers.judged_evidence import (
    ROUND,
    RULES,
    STEPS,
    epochs,
    evidence,
    learned,
    probed,
    run_check,
    run_of_probe,
    seen,
    states,
    verdict,
)


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
        (0, 2, "in a way that the grader does not count, such as shared memory"),
        (0, 0, "in a way that the grader does not count, such as shared memory"),
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
        # The Keras solution, as measured: it tells images hardly apart, but no rank was shown one class.
        ({"flow": [LearnedClasses(x, 1.0, 0.03) for x in (0.077, -0.014)]}, None),
        ({"flow": [LearnedClasses(0.03, 1.0, x) for x in (0.24, 0.25)]}, None),
        ({"flow": [LearnedClasses(0.03, 1.0, x) for x in (0.24, 0.26)]}, "flow"),
        ({"flow": [LearnedClasses(0.03, x, 0.03) for x in (0.39, 1.0)]}, "flow"),
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
        (ScriptFacts(compression=Place(5, "Compression.fp16")), "line 5 (Compression.fp16) rounds"),
        (ScriptFacts(), "the loss is not the mean over the images"),  # exchanges in each step
    ],
)
def test_names_the_most_likely_cause_of_a_difference_first(facts, first):
    given = dataclasses.replace(evidence(probe=probed(distance=0.3)), script=facts)
    help = run_check("equivalence", given).help
    assert help.startswith(f"Likely causes: (1) {first}") and "; (2) " in help and "(3)" not in help


@pytest.mark.parametrize(
    "rounds, only, first",
    [
        (STEPS, None, "the ranks begin with different weights"),
        (STEPS, 1, "something depends on the rank"),  # equal in the first epoch
        (0, None, "the gradients are not averaged"),
        (None, None, "the ranks begin with different weights"),  # the exchange was not measured
    ],
)
def test_names_the_most_likely_cause_of_different_weights_first(rounds, only, first):
    given = evidence(seen(rounds=rounds), epochs(only, difference=0.1, differs_at="linear.bias"))
    result = run_check("replicas", given)
    assert result.state == "fail" and result.help.startswith(f"Likely causes: (1) {first}")


@pytest.mark.parametrize(
    "imports, words",
    [
        (("horovod.torch",), "DistributedOptimizer"),
        (("torch.distributed",), "DistributedDataParallel"),
        (("torch.distributed", "horovod.torch"), "DistributedOptimizer"),
        (("torch",), "never imports Horovod"),
        (("mpi4py.MPI",), "comm.Allreduce"),
        (("hvdlab.keras.horovod",), "the optimizer that hvd.DistributedOptimizer returned"),
        (("horovod.tensorflow.keras",), "import hvdlab.keras.horovod as hvd"),
        (("lightning.pytorch", "torch"), 'strategy="ddp"'),
    ],
)
def test_names_the_call_of_the_library_that_the_script_uses(imports, words):
    given = evidence(seen(rounds=0), epochs(difference=0.5), imports=imports)
    assert words in run_check("replicas", given).help
