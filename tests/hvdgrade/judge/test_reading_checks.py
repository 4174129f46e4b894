"""What the ranks read, and the batch size that follows: each rule on a small case."""

import dataclasses

import pytest

from hvdgrade.evidence.evidence import (
    UNKNOWN_BATCH,
    batch_size,
)
from hvdgrade.judge.verdict import before_probing, judge, worth_probing
from hvdgrade.submission.script_facts import Place, ScriptFacts
from tests.helpers.judged_evidence import RULES, epochs, evidence, states, verdict


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


def test_advises_batches_epoch_if_every_epoch_reads_epoch_0():
    """In a second `fit` of the same data set, Keras reads epoch 0 again."""
    nothing = {"read": [0, 0], "coverage": 0.0}
    for only, told in ((1, True), (0, False)):
        checked = {c.id: c for c in verdict(epochs_=epochs(only, **nothing)).checks}
        assert checked["steps"].state == "fail"
        assert ("reads the same epoch again" in checked["steps"].help) == told


def test_a_script_that_does_not_read_from_batches_loses_the_points_of_all_checks_that_need_them():
    """The grader cannot judge which images its ranks read, and the probe works only with `Batches`."""
    given = evidence(epochs_=epochs(read=[0, 0], coverage=0.0))
    done = before_probing(given, RULES, 30.0)
    assert not worth_probing(done, given)
    result = judge(given, RULES, 30.0, done)
    assert {id for id, state in states(result).items() if state == "fail"} == {"steps"}
    assert (result.verdict, result.score, result.max_score) == ("fail", 65, 100)
    help = {check.id: check.help for check in result.checks}["steps"]
    assert help.startswith(
        "Likely causes: (1) batches.epoch(epoch) and recorder.epoch_end(epoch) are"
    )
    reader = dataclasses.replace(given, script=ScriptFacts(reader=Place(7, "DataLoader")))
    help = {check.id: check.help for check in judge(reader, RULES, 30.0).checks}["steps"]
    assert help.startswith("Likely causes: (1) line 7 (DataLoader) reads the images")
