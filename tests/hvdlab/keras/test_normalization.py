"""Ghost batch norm in Keras against NumPy and against Keras's own layer called ghost by ghost.

Runs on the backend that Keras finds; the last test runs the whole file once more on PyTorch.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="needs Keras: run `make setup`")

from hvdlab import reference  # noqa: E402
from hvdlab.keras.normalization import GhostBatchNorm, GhostBatchNormalization  # noqa: E402

BACKEND = keras.backend.backend()
if BACKEND == "tensorflow":
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
needs_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="is about tf.function")

# On PyTorch, Keras's batch norm computes in float32 also for layers of dtype float64.
EXACT, GRADIENT = (1e-12, 1e-10) if BACKEND == "tensorflow" else (1e-5, 1e-5)
GHOST_SIZE = 4
CASES = [  # shape, axis of the 3 channels
    ((8, 3), -1),
    ((10, 3), 1),
    ((9, 5, 3), -1),
    ((10, 3, 5), 1),
    ((8, 4, 2, 3), -1),
    ((10, 4, 2, 3), -1),
    ((10, 3, 4, 2), 1),
]


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(1, 2, shape)


def build(kind, shape, axis=-1, **options):
    layer = kind(axis=axis, **{"dtype": "float64", "momentum": 0.9, **options})
    layer.build((None, *shape[1:]))
    layer.set_weights([random(*w.shape, seed=7 + i) ** 2 for i, w in enumerate(layer.weights)])
    return layer


def ghost_layer(shape, axis=-1, ghost_size=GHOST_SIZE, **options):
    return build(GhostBatchNormalization, shape, axis, ghost_size=ghost_size, **options)


def plain_layer(shape, axis=-1, **options):
    return build(keras.layers.BatchNormalization, shape, axis, **options)


def loop(layer, x, ghost_size=GHOST_SIZE):
    """Keras's own layer on one ghost after the other."""
    ghosts = [x[i : i + ghost_size] for i in range(0, x.shape[0], ghost_size)]
    return keras.ops.concatenate([layer(ghost, training=True) for ghost in ghosts])


def gradients(function, layer, x, dy):
    """Of sum(y dy) with respect to x, gamma and beta."""
    if BACKEND == "tensorflow":
        x = tf.constant(x)
        weights = [w.value for w in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(function(x) * dy)
        return [g.numpy() for g in tape.gradient(loss, [x, *weights])]
    import torch

    x = torch.tensor(x, requires_grad=True)
    weights = [w.value for w in layer.trainable_variables]
    loss = (function(x) * torch.tensor(dy)).sum()
    return [g.numpy() for g in torch.autograd.grad(loss, [x, *weights])]


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def equal(actual, expected, tolerance=0.0):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def equal_weights(actual, expected, tolerance=0.0):
    for a, e in zip(actual.get_weights(), expected.get_weights(), strict=True):
        equal(a, e, tolerance)


@pytest.mark.parametrize("shape, axis", CASES)
def test_training_equals_the_reference(shape, axis):
    layer = ghost_layer(shape, axis)
    gamma, beta, mean, var = layer.get_weights()
    for step in range(3):
        x = random(*shape, seed=step)
        expected, mean, _ = reference.ghost_batch_norm(
            np.moveaxis(x, axis, -1), gamma, beta, mean, var, GHOST_SIZE, 1 - 0.9, 1e-3
        )
        y = numpy(layer(x, training=True))
        equal(np.moveaxis(y, axis, -1), expected, EXACT)
        equal(layer.get_weights()[2], mean, EXACT)


@pytest.mark.parametrize("shape, axis", CASES)
@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_training_equals_keras_layer_ghost_by_ghost(shape, axis, momentum):
    ghost = ghost_layer(shape, axis, momentum=momentum)
    plain = plain_layer(shape, axis, momentum=momentum)
    for step in range(3):
        x = random(*shape, seed=step)
        equal(numpy(ghost(x, training=True)), numpy(loop(plain, x)), EXACT)
        equal_weights(ghost, plain, EXACT)


@pytest.mark.parametrize("shape, axis", CASES)
def test_gradients_equal_keras_layer_ghost_by_ghost(shape, axis):
    ghost, plain = ghost_layer(shape, axis), plain_layer(shape, axis)
    x, dy = random(*shape), random(*shape, seed=1)
    actual = gradients(lambda x: ghost(x, training=True), ghost, x, dy)
    expected = gradients(lambda x: loop(plain, x), plain, x, dy)
    for a, e in zip(actual, expected, strict=True):
        equal(a, e, GRADIENT)


@pytest.mark.parametrize("scale, center", [(False, True), (True, False), (False, False)])
def test_scale_and_center_can_be_left_out(scale, center):
    shape = (10, 4, 2, 3)
    ghost = ghost_layer(shape, scale=scale, center=center)
    plain = plain_layer(shape, scale=scale, center=center)
    x = random(*shape)
    equal(numpy(ghost(x, training=True)), numpy(loop(plain, x)), EXACT)
    equal_weights(ghost, plain, EXACT)


@pytest.mark.parametrize("shape, axis", [((6, 3), -1), ((6, 3, 4, 2), 1)])
@pytest.mark.parametrize("ghost_size", [6, 100])
def test_a_ghost_of_the_whole_batch_is_the_plain_layer(shape, axis, ghost_size):
    ghost, plain = ghost_layer(shape, axis, ghost_size), plain_layer(shape, axis)
    x, dy = random(*shape), random(*shape, seed=1)
    actual = gradients(lambda x: ghost(x, training=True), ghost, x, dy)
    expected = gradients(lambda x: plain(x, training=True), plain, x, dy)
    for a, e in zip(actual, expected, strict=True):
        equal(a, e)
    equal(numpy(ghost(x, training=True)), numpy(plain(x, training=True)))
    equal_weights(ghost, plain)


@needs_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("shape, axis", [((None, 3), -1), ((None, 4, 2, 3), -1)])
def test_one_graph_serves_every_batch_size(shape, axis, jit_compile):
    ghost, plain = ghost_layer(shape, axis), plain_layer(shape, axis)
    traces = []

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float64)] * 2, jit_compile=jit_compile)
    def step(x, dy):
        traces.append(x.shape)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ghost(x, training=True)
        return y, tape.gradient(y, x, dy)

    for batch in (10, 8, 4, 3, 1):
        x, dy = random(batch, *shape[1:]), random(batch, *shape[1:], seed=1)
        y, dx = step(tf.constant(x), tf.constant(dy))
        equal(dx, gradients(lambda x: loop(plain, x), plain, x, dy)[0], GRADIENT)
        equal_weights(ghost, plain, EXACT)
        equal(y, loop(plain, x), EXACT)
        plain.set_weights(ghost.get_weights())  # the line above has moved them once more
    assert len(traces) == 1
    before = ghost.get_weights()
    y, _ = step(tf.zeros((0, *shape[1:]), tf.float64), tf.zeros((0, *shape[1:]), tf.float64))
    assert y.shape[0] == 0
    for actual, expected in zip(ghost.get_weights(), before, strict=True):
        equal(actual, expected)


@pytest.mark.parametrize("shape, axis", [((10, 3), -1), ((10, 3, 4, 2), 1)])
def test_inference_and_frozen_layers_are_the_plain_layers(shape, axis):
    ghost, plain = ghost_layer(shape, axis), plain_layer(shape, axis)
    x = random(*shape)
    equal(numpy(ghost(x)), numpy(plain(x)))
    ghost.trainable = plain.trainable = False
    equal(numpy(ghost(x, training=True)), numpy(plain(x, training=True)))
    equal_weights(ghost, plain)


def test_weights_are_named_and_ordered_as_in_the_plain_layer():
    ghost, plain = ghost_layer((10, 3), name="norm"), plain_layer((10, 3), name="norm")
    assert [w.path for w in ghost.weights] == [w.path for w in plain.weights]
    ghost(random(10, 3), training=True)
    plain.set_weights(ghost.get_weights())
    equal(numpy(plain(random(10, 3))), numpy(ghost(random(10, 3))))
    plain(random(10, 3), training=True)
    ghost.set_weights(plain.get_weights())
    equal_weights(ghost, plain)


def test_config_and_file_bring_the_layer_back(tmp_path):
    options = dict(ghost_size=3, axis=1, momentum=0.8, epsilon=1e-2, center=False, name="norm")
    layer = GhostBatchNormalization(gamma_initializer="uniform", **options)
    again = GhostBatchNormalization.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert {name: layer.get_config()[name] for name in options} == options

    model = keras.Sequential([keras.Input((3, 2)), layer])
    model.compile("sgd", "mse")
    model.fit(random(10, 3, 2), random(10, 3, 2), batch_size=7, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is GhostBatchNorm is GhostBatchNormalization
    assert loaded.layers[-1].ghost_size == 3
    equal_weights(loaded, model)


def test_fit_moves_the_statistics_as_a_loop_does():
    x = random(10, 3).astype("float32")
    ghost = ghost_layer((10, 3), dtype="float32")
    plain = plain_layer((10, 3), dtype="float32")
    model = keras.Sequential([keras.Input((3,)), ghost])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(x, x, batch_size=7, shuffle=False, verbose=0)
    loop(plain, x[:7])
    loop(plain, x[7:])
    equal_weights(ghost, plain, 1e-5)


def test_mixed_bfloat16_computes_in_float32():
    ghost = ghost_layer((10, 4, 2, 3), dtype="mixed_bfloat16")
    plain = plain_layer((10, 4, 2, 3), dtype="mixed_bfloat16")
    x = keras.ops.cast(random(10, 4, 2, 3), "bfloat16")
    y, expected = ghost(x, training=True), loop(plain, x)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert {w.dtype for w in ghost.weights} == {"float32"}
    y, expected = (numpy(keras.ops.cast(t, "float32")) for t in (y, expected))
    np.testing.assert_allclose(y, expected, rtol=2**-7, atol=1e-5)  # one digit of bfloat16
    equal_weights(ghost, plain, 1e-5)


def test_a_large_mean_costs_no_digits():
    # E[x^2] - mean^2 would lose all of them in float32.
    x = random(10, 8, 8, 3) + 1000
    layer = ghost_layer(x.shape, dtype="float32", momentum=0.0)
    exact = ghost_layer(x.shape, momentum=0.0)
    x = x.astype("float32")
    layer(x, training=True), exact(x.astype("float64"), training=True)
    np.testing.assert_allclose(layer.get_weights()[3], exact.get_weights()[3], rtol=1e-4)


def test_one_value_per_channel_comes_out_as_beta():
    layer = ghost_layer((9, 3))
    y = numpy(layer(random(9, 3), training=True))
    equal(y[8], layer.get_weights()[1], EXACT)
    assert all(np.isfinite(w).all() for w in layer.get_weights())


@pytest.mark.parametrize("ghost_size", [0, -1, 2.0, True, "4", None])
def test_wrong_ghost_sizes_are_refused(ghost_size):
    with pytest.raises(ValueError, match="ghost_size must be an integer of at least 1. Received"):
        GhostBatchNormalization(ghost_size)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"axis": 0}, "axis must be -1 or 1. Received: axis=0"),
        ({"axis": 3}, "axis must be -1 or 1. Received: axis=3"),
        ({"renorm": True}, "renorm must be False"),
        ({"synchronized": True}, "synchronized must be False"),
    ],
)
def test_what_ghosts_cannot_do_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GhostBatchNormalization(4, **options)


def test_masks_are_refused():
    layer = ghost_layer((10, 5, 3))
    with pytest.raises(ValueError, match="mask must be None"):
        layer(random(10, 5, 3), mask=np.ones((10, 5), bool), training=True)


@pytest.mark.skipif(BACKEND == "torch", reason="is running on it")
@pytest.mark.thorough
def test_all_of_this_on_the_torch_backend():
    pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-4000:]
