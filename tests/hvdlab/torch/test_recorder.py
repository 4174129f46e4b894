"""The files that the PyTorch recorder writes for an epoch, as the grader reads them."""

import json

import numpy as np

from hvdlab.assessment_networks import network_weights
from hvdlab.data import Batches
from hvdlab.record import WEIGHTS
from hvdlab.torch.models import AssessmentNet, assessment_network
from hvdlab.torch.recorder import Recorder


def test_the_assessment_network_has_the_names_of_the_grader(tmp_path):
    batches = Batches(np.zeros((10, 32, 32, 3), np.uint8), np.arange(10), 4)
    recorder = Recorder(AssessmentNet(), batches, tmp_path)
    given = np.concatenate([labels for _, labels in batches.epoch(2)])
    recorder.epoch_end(2, accuracy=0.5, batch_size=64)  # its own numbers stay its own
    arrays = np.load(tmp_path / "rank-0" / "epoch-002.npz")
    shapes = {name: array.shape for name, array in arrays.items()}
    assert shapes == {**WEIGHTS, "examples_read": (10,)}
    assert np.array_equal(arrays["examples_read"], given)  # the labels are the images' numbers
    line = json.loads((tmp_path / "rank-0" / "record.jsonl").read_text())
    del line["seconds"]
    assert line == {
        "epoch": 2,
        "steps": 3,
        "examples": 10,
        "batch_size": 4,
        "accuracy": 0.5,
        "steps_can_be_seen": 1,
    }


def test_a_larger_network_has_its_own_names(tmp_path):
    batches = Batches(np.zeros((10, 32, 32, 3), np.uint8), np.arange(10), 4)
    Recorder(assessment_network("wrn-10-1"), batches, tmp_path).epoch_end(0)
    arrays = np.load(tmp_path / "rank-0" / "epoch-000.npz")
    shapes = {name: array.shape for name, array in arrays.items() if name != "examples_read"}
    assert shapes == network_weights("wrn-10-1")
