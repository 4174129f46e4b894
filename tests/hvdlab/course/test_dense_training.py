"""The networks of lab 6 compute the same in Keras and in PyTorch, and as NumPy does it by hand."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")

from hvdlab.course import dense_training_keras, dense_training_torch  # noqa: E402

PAIR = [dense_training_keras, dense_training_torch]
RNG = np.random.default_rng(3)
IMAGES, LABELS = RNG.integers(0, 256, (60, 28, 28)), RNG.integers(0, 10, 60)
WEIGHTS = [RNG.normal(0, 0.05, shape).astype("float32") for shape in ((784, 8), 8, (8, 10), 10)]


def network(module, optimizer="sgd", learning_rate=0.1):
    made = module.DenseNetwork([8], optimizer)
    made.restart(seed=1, learning_rate=learning_rate)
    made.set_weights(WEIGHTS)
    return made, module.tensors(IMAGES, LABELS)


def by_hand(weights):
    """Return the loss and its gradient over all images."""
    w1, b1, w2, b2 = (w.astype(float) for w in weights)
    x = (IMAGES.reshape(60, 784) / 255 - 0.286) / 0.353
    hidden = np.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(60), LABELS]).mean()
    d = (p - np.eye(10)[LABELS]) / 60
    back = (d @ w2.T) * (hidden > 0)
    return loss, [x.T @ back, back.sum(0), hidden.T @ d, d.sum(0)]


@pytest.mark.parametrize("module", PAIR)
def test_loss_and_gradient_are_those_by_hand(module):
    made, data = network(module)
    loss, gradient = by_hand(WEIGHTS)
    assert made.loss(data) == pytest.approx(loss, rel=1e-5)
    for computed, expected in zip(made.gradient(data, np.arange(60)), gradient, strict=True):
        np.testing.assert_allclose(computed, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("module", PAIR)
def test_the_curvature_along_a_direction_is_the_change_of_the_gradient_along_it(module):
    made, data = network(module)
    directions = [[RNG.normal(size=w.shape) for w in WEIGHTS] for _ in range(2)]
    found = made.curvatures(data, np.arange(60), directions)
    for direction, curvature in zip(directions, found, strict=True):
        ends = [  # so close that no ReLU switches between them
            by_hand([w + s * 1e-6 * d for w, d in zip(WEIGHTS, direction, strict=True)])[1]
            for s in (1, -1)
        ]
        rise = sum(np.sum((a - b) * d) for a, b, d in zip(*ends, direction, strict=True))
        assert curvature == pytest.approx(rise / 2e-6, rel=1e-3)


@pytest.mark.parametrize("module", PAIR)
def test_a_step_of_sgd_subtracts_the_gradient(module):
    for trained in (True, False):
        made, data = network(module, learning_rate=0.2)
        if trained:
            made.train(data, np.arange(60)[None])
        else:
            made.apply(made.gradient(data, np.arange(60)))
        for after, w, g in zip(made.get_weights(), WEIGHTS, by_hand(WEIGHTS)[1], strict=True):
            np.testing.assert_allclose(after, w - 0.2 * g, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_both_frameworks_train_alike(optimizer):
    order = np.random.default_rng(1).integers(0, 60, (5, 16))
    found = []
    for module in PAIR:
        made, data = network(module, optimizer, learning_rate=0.01)
        made.train(data, order)
        found.append(([*made.get_weights()], made.accuracy(data)))
    (keras_weights, keras_accuracy), (torch_weights, torch_accuracy) = found
    for ours, others in zip(keras_weights, torch_weights, strict=True):
        difference = np.abs(ours - others)
        # Keras adds Adam's eps before the bias correction. In the first step it counts 1 / sqrt(0.001) = 32
        # times as much as in PyTorch, which changes steps of 0.01 with small gradients by about 1e-5.
        assert np.median(difference) < 1e-4 if optimizer == "adam" else difference.max() < 2e-5
    assert keras_accuracy == pytest.approx(torch_accuracy, abs=0.02)


@pytest.mark.parametrize("module", PAIR)
def test_a_restart_repeats_a_training(module):
    made, data = network(module, "adam")
    order, ends = np.arange(60).reshape(6, 10), []
    for seed in (1, 2, 1):
        made.restart(seed, 0.01)
        made.train(data, order)
        ends.append(made.get_weights()[0])
    np.testing.assert_allclose(ends[0], ends[2], atol=1e-6)
    assert not np.allclose(ends[0], ends[1], atol=1e-3)
