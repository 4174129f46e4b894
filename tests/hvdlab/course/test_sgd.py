"""The training loops of lab 3 in Keras and in PyTorch: the same networks, start and result."""

from importlib import import_module

import numpy as np
import pytest

from hvdlab.course.source import source_text

FRAMEWORKS = ["keras", "torch"]


@pytest.fixture(params=FRAMEWORKS)
def sgd(request):
    pytest.importorskip(request.param, reason="needs the frameworks: run `make setup`")
    return import_module(f"hvdlab.course.sgd_{request.param}")


def two_classes(n, size):
    """Images whose upper or lower half is bright, and which half it is."""
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=n).astype("int32")
    images = rng.random((n, size, size, 1), dtype=np.float32) / 4
    images[labels == 0, : size // 2] += 0.5
    images[labels == 1, size // 2 :] += 0.5
    return images, labels


def kernels(sgd, model):
    """The matrices and filters of a network with their numbers of inputs and outputs, in order."""
    found = []
    for weight in sgd.get_weights(model):
        if weight.ndim > 1:
            outputs = weight.shape[sgd.FILTER_AXIS]
            window = weight[0, 0].size if sgd.FILTER_AXIS == 0 else weight[..., 0, 0].size
            window = window if weight.ndim == 4 else 1
            found.append((weight, weight.size // outputs, outputs * window))
    return found


def test_networks_have_the_same_size(sgd):
    assert sgd.count_parameters(sgd.small_cnn(1)) == 208 + 1168 + 25_664 + 650
    for skips in (True, False):
        layers = 197 * 32 + 4 * 33 * 32 + 33 * 10
        assert sgd.count_parameters(sgd.deep_network(2, skips, 1)) == layers + 5 * 2 * 32


def test_initial_weights_have_the_distributions_of_keras(sgd):
    for weight, inputs, outputs in kernels(sgd, sgd.small_cnn(1)):
        limit = (6 / (inputs + outputs)) ** 0.5  # Glorot's uniform distribution
        assert abs(weight).max() <= limit
        assert weight.std() == pytest.approx(limit / 3**0.5, rel=0.1)
    in_block = kernels(sgd, sgd.deep_network(2, True, 1))[1:-1]
    assert len(in_block) == 4
    for weight, inputs, _ in in_block:  # a normal distribution of He, cut at two deviations
        assert weight.std() == pytest.approx((2 / inputs) ** 0.5, rel=0.1)
        assert abs(weight).max() < 2.3 * (2 / inputs) ** 0.5
    assert all(not w.any() for w in sgd.get_weights(sgd.small_cnn(1)) if w.ndim == 1)


def test_a_seed_decides_the_initial_weights(sgd):
    first, again, other = (sgd.get_weights(sgd.small_cnn(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_training_learns_and_stops_by_the_rule(sgd):
    images, labels = two_classes(200, 28)
    model, asked = sgd.small_cnn(1), []

    def stop(accuracies):
        asked.append(list(accuracies))
        return len(accuracies) == 4

    held_out = two_classes(60, 28)
    settings = {"batch_size": 32, "learning_rate": 0.05, "epochs": 9}
    log = sgd.train(model, images, labels, **settings, held_out=held_out, stop=stop)
    assert [len(found) for found in asked] == [1, 2, 3, 4]
    assert len(log.seconds) == len(log.losses) == 4 and log.accuracies == asked[-1]
    assert log.accuracies[-1] > 0.95 and log.losses[-1] < log.losses[0]
    loss = sgd.loss_function(model, images, labels)
    assert loss(sgd.get_weights(model)) < log.losses[0]


def test_one_step_is_that_of_sgd(sgd):
    """A step of `training_step` is minus the learning rate times the gradient by finite differences."""
    images, labels = two_classes(16, 28)
    model = sgd.small_cnn(1)
    before = sgd.get_weights(model)
    loss = sgd.loss_function(model, images, labels)
    returned = sgd.training_step(model, images, labels, 0.1)
    after = sgd.get_weights(model)
    moved = after[-1]  # the biases of the last layer, which were 0
    assert returned == pytest.approx(loss(before), rel=1e-4)
    assert loss(after) < returned
    for number in (0, 5):
        higher = [w.copy() for w in before]
        higher[-1][number] += 1e-2
        lower = [w.copy() for w in before]
        lower[-1][number] -= 1e-2
        slope = (loss(higher) - loss(lower)) / 2e-2
        assert moved[number] == pytest.approx(-0.1 * slope, rel=0.02)


def test_a_deep_network_trains_with_momentum(sgd):
    images, labels = two_classes(300, 14)
    model = sgd.deep_network(1, True, 1)
    settings = {"batch_size": 32, "learning_rate": 0.05, "momentum": 0.9, "epochs": 3}
    log = sgd.train(model, images, labels, **settings)
    assert log.losses[-1] < 0.2 and not log.accuracies


def test_both_frameworks_have_the_same_names():
    public = []
    for framework in FRAMEWORKS:
        pytest.importorskip(framework)
        module = import_module(f"hvdlab.course.sgd_{framework}")
        public.append(
            {
                name
                for name, value in vars(module).items()
                if getattr(value, "__module__", "") == module.__name__ and name[0] not in "_B"
            }
        )
    assert public[0] == public[1] >= {"small_cnn", "deep_network", "train", "training_step"}


def test_source_text_leaves_out_the_docstring():
    text = source_text(source_text)
    assert text.startswith("def source_text(") and '"""Return' not in text
    assert "inspect.getsource" in text and "Args" not in text.partition("start")[0]
    assert source_text(two_classes).count('"""') == 0
