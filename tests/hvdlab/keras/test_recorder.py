"""The recorder: the assessment network under the grader's names, other models under Keras' paths."""

import json

import numpy as np
import pytest

from hvdlab.assessment_networks import VARIABLE, network_weights
from hvdlab.data import Batches
from hvdlab.record import WEIGHTS
from hvdlab.recordable import NotRecordable

keras = pytest.importorskip("keras")

from hvdlab.keras.data import dataset  # noqa: E402
from hvdlab.keras.models import AssessmentNet, assessment_network  # noqa: E402
from hvdlab.keras.recorder import Recorder  # noqa: E402

layers = keras.layers


class PerClass(keras.metrics.Metric):
    """A metric of one number a class, as F1Score's default is."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        pass

    def result(self):
        return keras.ops.ones(10)


def record(model, shape, folder, first_epoch=0):
    """What `fit` records of one epoch of ten images in batches of four."""
    batches = Batches(np.zeros((10, *shape), np.uint8), np.arange(10), 4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", PerClass()]
    model.compile("sgd", loss, metrics=metrics, jit_compile=False)
    model.fit(
        dataset(batches, first_epoch),
        steps_per_epoch=len(batches),
        initial_epoch=first_epoch,
        epochs=first_epoch + 1,
        callbacks=[Recorder(batches, folder)],
        shuffle=False,
        verbose=0,
    )
    line = json.loads((folder / "rank-0" / "record.jsonl").read_text())
    return dict(np.load(folder / "rank-0" / f"epoch-{first_epoch:03d}.npz")), line


def test_the_assessment_network_has_the_names_of_the_grader(tmp_path):
    arrays, line = record(AssessmentNet(), (32, 32, 3), tmp_path)
    assert {name: array.shape for name, array in arrays.items()} == {
        **WEIGHTS,
        "examples_read": (10,),
    }
    assert (line["examples"], line["steps"], line["batch_size"]) == (10, 3, 4)
    assert 0 <= line["accuracy"] <= 1 and "per_class" not in line


def test_the_network_that_the_grader_names_has_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HVDLAB_NETWORK", "wrn-10-1")
    arrays, _ = record(assessment_network(), (32, 32, 3), tmp_path)
    del arrays["examples_read"]
    assert {name: array.shape for name, array in arrays.items()} == network_weights("wrn-10-1")


class Wrapped(keras.Model):
    """The network inside a model of a learner's own."""

    def __init__(self):
        super().__init__()
        self.network = AssessmentNet()

    def call(self, images, training=False):
        return self.network(images, training=training)


def augmented():
    return keras.Sequential([layers.Input((32, 32, 3)), layers.RandomFlip(), AssessmentNet()])


@pytest.mark.parametrize("wrap", [Wrapped, augmented])
def test_the_network_is_recorded_by_the_names_of_the_grader_inside_another_model(wrap, tmp_path):
    model = wrap()
    arrays, _ = record(model, (32, 32, 3), tmp_path)
    assert {name: array.shape for name, array in arrays.items()} == {
        **WEIGHTS,
        "examples_read": (10,),
    }
    network = next(part for part in model.layers if part.name == "assessment_net")
    bias = keras.ops.convert_to_numpy(network.get_layer("linear").bias)
    np.testing.assert_array_equal(arrays["linear.bias"], bias)


def test_another_model_has_its_own(tmp_path):
    model = keras.Sequential(
        [layers.Input((4, 4, 1)), layers.Flatten(), layers.Dense(10, name="dense")], name="mine"
    )
    arrays, line = record(model, (4, 4, 1), tmp_path, first_epoch=2)
    assert sorted(arrays) == ["examples_read", "mine/dense/bias", "mine/dense/kernel"]
    kernel = keras.ops.convert_to_numpy(model.get_layer("dense").kernel)
    np.testing.assert_array_equal(arrays["mine/dense/kernel"], kernel)
    assert (line["epoch"], line["examples"]) == (2, 10)


def renamed():
    """The layers of the network under names of their own."""
    return keras.Sequential([layers.Input((32, 32, 3)), layers.Flatten(), layers.Dense(10)])


def larger():
    network = AssessmentNet()
    features = network.get_layer("linear").input
    return keras.Model(network.input, layers.Dense(20, name="linear")(features))


def without_bias():
    network = AssessmentNet()
    features = network.get_layer("linear").input
    return keras.Model(network.input, layers.Dense(10, use_bias=False, name="linear")(features))


class Twice(Wrapped):
    """The network, and a copy of it."""

    def __init__(self):
        super().__init__()
        self.copy = AssessmentNet()


@pytest.mark.parametrize(
    "model, words",
    [
        (renamed, "Sequential with no weight conv1.weight and 18 more (its first weight is "),
        (larger, "a weight linear.weight of shape (20, 256) in place of (10, 256)"),
        (without_bias, "no weight linear.bias"),
        (Twice, "Twice with 2 of them"),
    ],
)
def test_a_graded_run_refuses_another_network_before_its_first_epoch(
    model, words, tmp_path, monkeypatch
):
    monkeypatch.setenv(VARIABLE, "assessment-net")
    with pytest.raises(NotRecordable) as refusal:
        record(model(), (32, 32, 3), tmp_path)
    assert words in str(refusal.value)
    assert not list((tmp_path / "rank-0").iterdir())


@pytest.mark.parametrize("model", [renamed, larger, without_bias, Twice])
def test_a_lab_records_any_model(model, tmp_path):
    arrays, _ = record(model(), (32, 32, 3), tmp_path)
    assert "conv1.weight" not in arrays and any(name.endswith("/kernel") for name in arrays)


@pytest.mark.parametrize("wrap", [AssessmentNet, Wrapped, augmented])
def test_a_graded_run_records_the_network(wrap, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "assessment-net")
    arrays, _ = record(wrap(), (32, 32, 3), tmp_path)
    assert {name: array.shape for name, array in arrays.items() if name in WEIGHTS} == WEIGHTS


def test_refuses_what_is_no_batches_and_no_model(tmp_path):
    with pytest.raises(NotRecordable, match="must be the hvdlab.data.Batches"):
        Recorder(AssessmentNet(), tmp_path)
    batches = Batches(np.zeros((10, 4, 4, 1), np.uint8), np.arange(10), 4)
    with pytest.raises(NotRecordable, match="must be a keras.Model. Received: list"):
        Recorder(batches, tmp_path).set_model([])
