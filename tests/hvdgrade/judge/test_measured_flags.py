"""Flags that follow from what was measured: each has its limit, and none is shown for an ordinary run."""

from dataclasses import replace
from pathlib import Path

from hvdgrade import profiles
from hvdgrade.evidence.evidence import EpochEvidence, Evidence, LearnedClasses, ProbeEvidence
from hvdgrade.evidence.observation import Observation, Probe, Weights
from hvdgrade.judge.measured_flags import measured_flags

RULES = profiles.load("cpu")
LEARNED = [LearnedClasses(0.5, 1.0, 0.02)] * 2


def evidence(second_epoch: float = 10.0) -> Evidence:
    """Return the evidence of an ordinary run: on each rank a pass over the images needs 10 s."""
    epochs = [EpochEvidence(epoch, "", 0, "", 1, [9, 9], 0, 1.0, 0, 0, 3, 3) for epoch in range(2)]
    weights = [
        Weights(rank, epoch, at, Path("x"), "")
        for rank in range(2)
        for epoch, at in enumerate((10.0, 10.0 + second_epoch))
    ]
    graded = Observation(2, computed={0: 40.0, 1: 39.0}, weights=weights)
    probe = ProbeEvidence(Probe(), flow=LEARNED, distance=0.0)
    return Evidence(graded, epochs, probe=probe, pass_seconds=10.0)


def test_an_ordinary_run_has_no_flag():
    assert measured_flags(evidence(), RULES) == []
    assert (
        measured_flags(Evidence(Observation(2)), RULES) == []
    )  # it ended before anything was measured


def test_flags_an_epoch_that_was_too_fast():
    assert measured_flags(evidence(second_epoch=6.0), RULES) == []
    (flag,) = measured_flags(evidence(second_epoch=5.9), RULES)
    assert flag["kind"] == "speed" and flag["line"] is None
    assert "Epoch 1 took 5.9 s. 2 processes that train at the speed" in flag["text"]


def test_flags_a_network_that_knows_the_class_of_the_test_images():
    given = evidence()
    for learned, known, kinds in ((0.5, 1.49, []), (0.5, 1.5, ["test images"]), (1e-5, 1.5, [])):
        flow = [LEARNED[0], LearnedClasses(learned, 1.0, test_class=known)]
        found = measured_flags(replace(given, probe=replace(given.probe, flow=flow)), RULES)
        assert [flag["kind"] for flag in found] == kinds


def test_flags_a_script_whose_weights_are_seen_at_the_end_of_epochs_only():
    given = evidence()
    for steps, kinds in ((0, []), (4, ["steps"])):
        found = replace(given.probe, probe=replace(given.probe.probe, steps=steps))
        flags = measured_flags(replace(given, probe=found), RULES)
        assert [flag["kind"] for flag in flags] == kinds
