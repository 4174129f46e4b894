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
from hvdgrade.evidence.observation import ProbeForm
from hvdgrade.judge import parallel_checks, traffic
from hvdgrade.submission.script_facts import Place, ScriptFacts
from hvdlab.record import WEIGHTS, is_statistic
from tests.helpers.judged_evidence import (
    ROUND,
    RULES,
    STEPS,
    epochs,
    evidence,
    probed,
    run_check,
    run_of_probe,
    seen,
    states,
    verdict,
)


def probe_of(apart: float, together: float | None = None, **more) -> observation.Probe:
    """Return a probe that exchanged so many rounds of gradients per step in its runs, from step 4 to 8."""
    runs = {"apart": apart, "together": apart if together is None else together}
    seen = {name: run_of_probe(*[rounds] * 24) for name, rounds in runs.items()}
    return observation.Probe(seen=seen, **more)


# The graded run has 1 round of float32 gradients in each of its 100 steps.
@pytest.mark.parametrize(
    "apart, found, words",
    [
        (2.0, {"updates": 1.0}, ""),  # float64: twice as many bytes
        (2.2, {"updates": 1.0}, ""),  # and a few bytes more
        (0.5, {"updates": 1.0}, ""),  # float16: the graded run has more bytes than it needs
        (2.0, {"updates": None}, ""),
        (2.0, {"updates": 1.0, "distance": 0.06}, ""),
        (0.5, {"updates": 1.0, "distance": 0.39}, ""),  # rounding to 16 bits explains that
        (0.5, {"updates": 1.0, "distance": 0.41}, "differ by 41.0%"),
        (
            0.5,
            {"updates": 0.25, "distance": 0.08},
            "differ by 8.0%",
        ),  # float64 in every fourth step
        (2.0, {"updates": 1.0, "distance": 0.08}, "differ by 8.0%"),
        (
            2.0,
            {"replicas": 0.5, "differing_step": 5, "differing": ["conv1.weight", "linear.bias"]},
            "after step 5 of a short run, the ranks have different weights (conv1.weight, linear.bias)",
        ),
    ],
)
def test_ranks_must_train_like_a_single_process(apart, found, words):
    result = verdict(probe_=probe_of(apart), **found)
    (check,) = [check for check in result.checks if check.id == "equivalence"]
    assert check.state == ("fail" if words else "pass") and words in check.rationale


@pytest.mark.parametrize(
    "rounds, apart, updates, bits, state",
    [
        (100, 2.0, 1.0, 64, "pass"),
        (91, 2.0, 1.0, 64, "pass"),
        (89, 2.0, 1.0, 64, "fail"),  # the probe averages in each step
        (50, 0.5, 1.0, 64, "pass"),  # float16
        (44, 0.5, 1.0, 64, "fail"),
        (50, 1.0, 0.5, 64, "pass"),  # accumulated over two steps
        (25, 0.5, 0.25, 64, "pass"),  # over four steps
        (22, 0.5, 0.25, 64, "fail"),
        (17, 0.34, 0.17, 64, "pass"),  # over six steps: fails because of FEWEST_UPDATES, see below
        (50, 0.5, 1.0, 32, "pass"),  # float16 in a probe in float32
        (100, 1.0, 1.0, 32, "pass"),
        (50, 1.0, 1.0, 32, "fail"),
        (100, 1.0, 1.0, 64, "pass"),  # declared as MPI.FLOAT
        (100, 2.0, None, 64, "pass"),
        (60, 2.0, None, 64, "fail"),
        (25, 0.5, None, 64, "pass"),  # float16, or accumulated over four steps
    ],
)
def test_the_graded_run_exchanges_as_often_as_the_probe(rounds, apart, updates, bits, state):
    found = probed(probe_of(apart, bits=bits), updates=updates)
    given = evidence(seen(rounds=rounds), probe=found)
    short = traffic.shortage(given, RULES)
    assert (short is None) == (state == "pass")
    assert run_check("equivalence", given).state == state


def test_reports_the_rounds_that_are_missing():
    given = evidence(seen(rounds=17), probe=probed(probe_of(2.0), updates=1.0))
    check = run_check("equivalence", given)
    assert (
        "only 17.0 rounds of all gradients in the 100 steps of epoch 1. With the numbers that the script "
        "sends, at least 22.5 are needed" in check.rationale
    )


def test_the_exchange_may_decrease_from_epoch_to_epoch():
    """A batch may grow by accumulation of gradients, over at most four steps."""
    three = [dataclasses.replace(epochs()[0], epoch=epoch) for epoch in range(3)]
    for rounds, short in (((100, 100, 25), False), ((100, 100, 22), True), ((100, 50, 25), True)):
        run = run_of_probe(*rounds)
        given = evidence(run, three, probe=probed(probe_of(2.0), updates=1.0))
        assert (traffic.shortage(given, RULES) is not None) is short
    unknown = evidence(seen(rounds=None), probe=probed(probe_of(2.0), updates=1.0))
    assert traffic.shortage(unknown, RULES) is None


@pytest.mark.parametrize("steps, needed", [(400, 90), (100, 22.5), (7, 0.9), (6, 0.9), (None, 0.9)])
def test_a_claim_of_few_steps_does_not_lower_the_exchange_below_that_of_large_batches(
    steps, needed
):
    """25,000 images in batches of 4,096 are seven steps."""
    given = evidence(
        seen(rounds=0.5), epochs(steps=steps), probe=probed(probe_of(2.0), updates=1.0)
    )
    assert traffic.shortage(given, RULES).needed == pytest.approx(needed)


@pytest.mark.parametrize("together, state", [(1.0, "pass"), (1.19, "pass"), (1.21, "fail")])
def test_the_exchange_must_not_grow_with_the_batch(together, state):
    check = run_check("equivalence", evidence(probe=probed(probe_of(1.0, together))))
    assert check.state == state
    growth = "with batches 2 times as large the ranks exchange 1.2 times as many bytes"
    assert (growth in check.rationale) is (state == "fail")


@pytest.mark.parametrize(
    "differing, words",
    [
        (
            ["norm4.weight", "norm4.bias"],
            "the gradients of norm4.weight, norm4.bias are not averaged",
        ),
        (None, "the script averages weights now and then"),
    ],
)
def test_names_the_layers_whose_gradients_are_not_averaged(differing, words):
    if differing is None:
        differing = [name for name in WEIGHTS if not is_statistic(name)]
    found = probed(probe_of(2.0), replicas=0.3, differing_step=4, differing=differing)
    assert words in run_check("equivalence", evidence(probe=found)).help


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


def test_a_record_that_is_found_late_hides_no_exchange():
    """Two epochs of 24 rounds each end between two looks of the grader, after 25 and after 73 rounds."""
    counted = {0: (24, 25), 1: (25, 73), 2: (25, 73)}
    weights = [
        observation.Weights(rank, epoch, 1.0, Path("x"), "", latest * ROUND, earliest * ROUND)
        for rank in range(2)
        for epoch, (earliest, latest) in counted.items()
    ]
    run = observation.Observation(2, weights=weights)
    assert traffic.exchanges(run, [0, 1, 2], RULES) == [25, 49, 48]


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
        (12.5, "pass"),  # the same, accumulated over four steps
        (11, "fail"),
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
        (782, 9, 1, "fail"),
        (782, 4, 4, "pass"),
        (782, 4, 2, "pass"),  # in float16
        # Accumulated over four steps, or weights averaged: the probe distinguishes them.
        (782, 4, 1, "pass"),
        (782, 4, 0.5, "fail"),
        (782, 2, 2, "pass"),
        (782, 1, 0.25, "fail"),  # less than two steps of 512 images
        (782, 0, 0.25, "fail"),
        (782, 0, 0, "fail"),
        (25_000, 24, 2.8, "pass"),
        (25_000, 24, 2.6, "fail"),
        (25_000, 24, 1, "fail"),  # weights averaged once an epoch
        (25_000, 13, 2.4, "fail"),
        (25_000, 4, 4, "pass"),
        (25_000, 4, 1, "fail"),  # although it claims few steps
        (25_000, 1, 1, "fail"),
        (25_000, 0, 0, "fail"),
        (1_500, 0, 0, "fail"),
        (0, 0, 0, "fail"),  # no record of what was read: the floor holds
        (0, 0, 2.4, "fail"),
        (0, 0, 2.6, "pass"),
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
        # The class that no rank was shown is unlikely: the probabilities tell.
        ({"flow": [LearnedClasses(3.0, x, 0.0, 0.02) for x in (0.41, 1.0)]}, None),
        ({"flow": [LearnedClasses(3.0, x, 1.0, 0.25) for x in (0.39, 1.0)]}, "flow"),
        ({"flow": [LearnedClasses(3.0, x, 1.0, 0.25) for x in (1.0, 0.01)]}, "flow"),
        # It is not, as in a warmup: the changes tell.
        ({"flow": [LearnedClasses(2e-4, 1.0, x, 0.99) for x in (0.41, 1.0)]}, None),
        ({"flow": [LearnedClasses(2e-4, 1.0, x, 0.99) for x in (1.0, 0.39)]}, "flow"),
        ({"flow": [LearnedClasses(x, 1.0, 1.0, 0.99) for x in (2e-4, 0.9e-4)]}, "flow"),
        ({"flow": [LearnedClasses(x, 1.0, 0.0, 0.2) for x in (2e-4, 0.9e-4)]}, None),
        ({"distance": 0.069}, None),
        ({"distance": 0.071}, "equivalence"),
        ({"replicas": 1.1e-5, "differing_step": 4, "differing": ["linear.bias"]}, "equivalence"),
        ({"replicas": 0.9e-5}, None),
    ],
)
def test_the_probe_has_two_limits(found, failed):
    result = verdict(**found)
    assert [id for id, state in states(result).items() if state != "pass"] == [failed] * bool(
        failed
    )


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


@pytest.mark.parametrize(
    "found, options",
    [
        ({}, []),
        ({"distance": UNMOVED, "first_distance": UNMOVED}, [ProbeForm(4)]),
        ({"flow": [LearnedClasses(1e-5, 1.0)] * 2}, [ProbeForm(4)]),  # a very long warmup
        ({"flow": [LearnedClasses(1e-5, 1.0, test_class=0.2)] * 2}, []),
        ({"replicas": 0.1, "updates": None}, [ProbeForm(bits=64)]),  # another thread read ahead
        ({"replicas": 0.1, "updates": 1.0}, []),
        (
            {"probe": probe_of(1.0, 1.3)},
            [ProbeForm(bits=64)],
        ),  # the bytes may have been counted late
    ],
)
def test_repeats_a_probe_that_shows_nothing_in_another_form(found, options):
    found = {"updates": 1.0, **found}
    given = evidence(probe=probed(found.pop("probe", None), **found))
    assert parallel_checks.other_probes(given, RULES) == options
    # With short epochs there is no other form.
    short = evidence(probe=probed(observation.Probe(steps=4), **found))
    assert ProbeForm(4) not in parallel_checks.other_probes(short, RULES)
