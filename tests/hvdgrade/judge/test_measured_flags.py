"""Flags that follow from what was measured: each has its limit, and none is shown for an ordinary run."""

from dataclasses import replace
from pathlib import Path

import pytest

from hvdgrade.evidence.evidence import EpochEvidence, Evidence, LearnedClasses, ProbeEvidence
from hvdgrade.evidence.observation import Observation, Probe, Weights
from hvdgrade.judge.measured_flags import measured_flags

LEARNED = [LearnedClasses(0.5, 1.0, 0.02)] * 2


def run(seconds: list[float], cpu: list[float | None]) -> Observation:
    """Return a run whose ranks recorded epochs at these seconds, after so much CPU time."""
    weights = [
        Weights(rank, epoch, at, Path("x"), "", cpu_seconds=used)
        for rank in range(2)
        for epoch, (at, used) in enumerate(zip(seconds, cpu, strict=True))
    ]
    return Observation(2, computed={0: 40.0, 1: 39.0}, weights=weights)


def evidence(together: float = 4.0, apart: float = 2.0, second_epoch: float = 10.0) -> Evidence:
    """Return the evidence of an ordinary run, whose probe took so many CPU seconds per epoch."""
    epochs = [EpochEvidence(epoch, "", 0, "", 1, [9, 9], 0, 1.0, 0, 0, 3, 3) for epoch in range(2)]
    seen = {
        "apart": run([1, 2, 3], [9, 9 + apart, 9 + 2 * apart]),
        "together": run([1, 2], [9, 9 + together]),
    }
    probe = ProbeEvidence(Probe(seen=seen), flow=LEARNED, distance=0.0)
    graded = run([10.0, 10.0 + second_epoch], [None, None])
    return Evidence(graded, epochs, probe=probe, pass_seconds=10.0)


def test_an_ordinary_run_has_no_flag():
    assert measured_flags(evidence()) == []
    assert measured_flags(Evidence(Observation(2))) == []  # it ended before anything was measured


@pytest.mark.parametrize(
    "changes, kind, words",
    [
        ({"second_epoch": 5.9}, "speed", "Epoch 1 took 5.9 s. 2 processes"),
        ({"together": 2.19}, "shared work", "only 1.09 times as long for batches that are 2 times"),
    ],
)
def test_flags_what_is_below_its_limit(changes, kind, words):
    (flag,) = measured_flags(evidence(**changes))
    assert flag["kind"] == kind and words in flag["text"] and flag["line"] is None


def test_values_at_the_limits_are_not_flagged():
    assert measured_flags(evidence(second_epoch=6.0, together=2.25)) == []


def test_flags_a_network_that_knows_the_class_of_the_test_images():
    given = evidence()
    for known, kinds in ((1.19, []), (1.2, ["test images"])):
        flow = [LEARNED[0], LearnedClasses(0.5, 1.0, known)]
        found = measured_flags(replace(given, probe=replace(given.probe, flow=flow)))
        assert [flag["kind"] for flag in found] == kinds


def test_does_not_compare_the_cpu_time_of_a_probe_that_failed():
    given = evidence(together=2.0)
    failed = replace(given.probe.probe, failed=Observation(2, stop_cause="crashed"))
    assert measured_flags(replace(given, probe=replace(given.probe, probe=failed))) == []
