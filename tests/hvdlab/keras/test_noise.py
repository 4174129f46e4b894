"""Noise in Keras: weights that reach fit only, noise that survives graph, accumulation and saving."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="needs Keras: run `make setup`")
from keras import ops  # noqa: E402

from hvdlab.keras.noise import GradientNoise, LossWeights, NoisySGD, squared_norm  # noqa: E402

TENSORFLOW = keras.backend.backend() == "tensorflow"
ETA = 0.3


def assert_mean(samples, truth, precision):
    """The mean over axis 0 is `truth` within 4 standard errors, which is within `precision`."""
    standard_error = samples.std(0) / math.sqrt(len(samples))
    assert np.all(4 * standard_error < precision), 4 * standard_error
    assert np.all(abs(samples.mean(0) - truth) < 4 * standard_error), samples.mean(0) - truth


# --- weights of losses -----------------------------------------------------------------------------


def draw(weights, calls=1, batch=64):
    y = np.zeros(batch)
    return np.stack([ops.convert_to_numpy(weights(y, y)[2]) for _ in range(calls)])


def linear_model(width=3):
    """Its loss is w . x y, so that the gradient of an example is x y whatever w is."""
    model = keras.Sequential(
        [keras.Input((width,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(1.0), lambda y, prediction: (y * prediction)[:, 0])
    return model


def batches(weights=None, batch=8, steps=3):
    """Batches for `fit`, the way of the backend: (x, y), or (x, y, weights)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(steps, batch, 3)).astype("f4")
    y = rng.normal(size=(steps, batch, 1)).astype("f4")
    if not TENSORFLOW:
        pairs = zip(x, y, strict=True)
        return x, y, (weights(*pair) if weights else pair for pair in pairs)
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((x, y))
    return x, y, data.map(weights) if weights else data


def test_each_step_of_fit_descends_the_weighted_mean_gradient():
    model = linear_model()
    path = []
    x, y, data = batches(LossWeights(0.7, seed=3, rank=1))
    model.fit(
        data,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: path.append(model.get_weights()[0][:, 0])
            )
        ],
    )
    z = draw(LossWeights(0.7, seed=3, rank=1), calls=3, batch=8)
    gradients = (z[:, :, None] * x * y).mean(1)  # divided by 8, not by the sum of z
    np.testing.assert_allclose(path, -np.cumsum(gradients, 0), atol=1e-5)


def test_evaluation_is_not_weighted():
    model = linear_model()
    model.fit(batches(LossWeights(2.0))[2], verbose=0)
    x, y, data = batches()
    expected = ((x @ model.get_weights()[0]) * y).mean()
    assert model.evaluate(data, verbose=0) == pytest.approx(expected, abs=1e-5)


def test_weights_have_mean_1_and_gradients_the_covariance_of_a_small_batch():
    weights = LossWeights(LossWeights.std_for(32, 4))
    z = draw(weights, batch=32 * 40_000)[0].astype("f8")
    assert_mean(z, 1, precision=0.02)
    g = np.random.default_rng(0).normal(0, math.sqrt(3), (40_000, 32))
    gradients = (z.reshape(g.shape) * g).mean(1)
    assert_mean(gradients, 0, precision=0.02)
    assert_mean(gradients**2, 3 / 4, precision=0.03)


def test_seed_and_rank_give_the_stream_and_nothing_else_does():
    keras.utils.set_random_seed(1)
    undisturbed = ops.convert_to_numpy(keras.random.normal((4,)))
    keras.utils.set_random_seed(1)
    first = draw(LossWeights(1.0, seed=5, rank=2), calls=3)
    np.testing.assert_array_equal(ops.convert_to_numpy(keras.random.normal((4,))), undisturbed)
    np.testing.assert_array_equal(draw(LossWeights(1.0, seed=5, rank=2), calls=3), first)


def test_streams_of_ranks_seeds_and_steps_have_nothing_in_common():
    streams = [draw(LossWeights(1.0, seed, rank), calls=4) for seed in (0, 1) for rank in (0, 1, 2)]
    calls = np.concatenate(streams)  # each row is one call
    assert len(np.unique(calls)) > 0.999 * calls.size
    correlation = np.corrcoef(calls) - np.eye(len(calls))
    assert abs(correlation).max() < 5 / math.sqrt(64)


# --- noise on gradients ----------------------------------------------------------------------------


def noise_of(optimizer, steps, sizes=(40_000, 40_000), scale=1.0):
    """What `optimizer` of rate 1 adds to gradients of 3: one row a step, variables side by side."""
    variables = [keras.Variable(np.zeros(size, "f4")) for size in sizes]
    optimizer.build(variables)
    rows = []
    for _ in range(steps):
        optimizer.apply([ops.full(v.shape, 3.0 * scale) for v in variables], variables)
        rows.append(np.concatenate([ops.convert_to_numpy(v.value) for v in variables]))
        for v in variables:
            v.assign(ops.zeros(v.shape))
    return -np.stack(rows) - 3


def test_noise_has_mean_0_and_the_annealed_variance():
    rows = noise_of(NoisySGD(1.0, eta=ETA), steps=4)
    for t, row in enumerate(rows.astype("f8")):
        assert_mean(row, 0, precision=0.01)
        assert_mean(row**2, ETA / (1 + t) ** 0.55, precision=0.01)
    apart = np.corrcoef(rows.reshape(8, 40_000)) - np.eye(8)  # steps and variables
    assert abs(apart).max() < 5 / math.sqrt(40_000)


def test_micro_steps_that_accumulate_add_the_noise_of_one_step():
    plain = noise_of(NoisySGD(1.0, eta=ETA, seed=2), steps=2)
    rows = noise_of(NoisySGD(1.0, eta=ETA, seed=2, gradient_accumulation_steps=4), steps=8)
    np.testing.assert_allclose(rows[[3, 7]], plain, atol=1e-5)


def test_loss_scaling_leaves_the_noise_as_it_is():
    plain = noise_of(NoisySGD(1.0, eta=ETA), steps=2)
    static = noise_of(NoisySGD(1.0, eta=ETA, loss_scale_factor=64.0), steps=2, scale=64)
    np.testing.assert_allclose(static, plain, atol=1e-5)
    wrapped = keras.optimizers.LossScaleOptimizer(NoisySGD(1.0, eta=ETA), initial_scale=64.0)
    np.testing.assert_allclose(noise_of(wrapped, steps=2, scale=64), plain, atol=1e-5)


def test_seed_alone_makes_replicas_agree_and_global_state_does_not_matter():
    keras.utils.set_random_seed(1)
    first = noise_of(NoisySGD(1.0, eta=ETA, seed=7), steps=2)
    keras.utils.set_random_seed(2)
    np.testing.assert_array_equal(noise_of(NoisySGD(1.0, eta=ETA, seed=7), steps=2), first)
    other = noise_of(NoisySGD(1.0, eta=ETA, seed=8), steps=2)
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.02


def test_fit_draws_anew_in_each_step_for_dense_and_sparse_gradients():
    x = np.arange(8)[:, None]  # rows 8..199 of the table have no gradient but noise
    layers = keras.layers.Embedding(200, 50), keras.layers.Flatten(), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile(NoisySGD(1.0, eta=ETA), lambda y, prediction: 0 * prediction[:, 0])
    path = [model.get_weights()[0]]
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: path.append(model.get_weights()[0])
    )
    model.fit(x, np.zeros(8), batch_size=4, epochs=2, verbose=0, callbacks=[record])
    steps = np.diff(path, axis=0).reshape(4, -1)
    for t, step in enumerate(steps.astype("f8")):
        assert_mean(step**2, ETA / (1 + t) ** 0.55, precision=0.02)
    assert abs(np.corrcoef(steps) - np.eye(4)).max() < 0.05


def test_a_saved_and_loaded_model_goes_on_with_the_same_noise(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 3)).astype("f4"), rng.normal(size=(16, 1)).astype("f4")

    def fit(model):
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        return model.get_weights()

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(NoisySGD(0.1, momentum=0.9, eta=0.01, gamma=0.4, seed=3), "mse")
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is NoisySGD
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for ours, theirs in zip(fit(loaded), fit(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_noise_goes_in_front_of_any_optimizer():
    class NoisyAdam(GradientNoise, keras.optimizers.Adam):
        pass

    def trained(optimizer):
        w = keras.Variable(np.ones(4, "f4"))
        optimizer.build([w])
        for _ in range(3):
            optimizer.apply([w * 2.0], [w])
        return ops.convert_to_numpy(w.value)

    np.testing.assert_array_equal(
        trained(NoisyAdam(0.1, eta=0)), trained(keras.optimizers.Adam(0.1))
    )
    assert not np.allclose(trained(NoisyAdam(0.1, eta=1)), trained(keras.optimizers.Adam(0.1)))


def test_squared_norm_of_a_list_of_gradients():
    gradients = [ops.convert_to_tensor([1.0, -2.0]), None, ops.convert_to_tensor([[300.0, 400.0]])]
    assert float(squared_norm(gradients)) == 250_005
    assert float(squared_norm([ops.cast([300.0, 400.0], "float16")])) == 250_000


@pytest.mark.skipif(not TENSORFLOW, reason="only TensorFlow has IndexedSlices")
def test_squared_norm_sums_repeated_rows_first():
    import tensorflow as tf

    rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), [0, 0, 1], tf.constant([3, 1]))
    assert float(squared_norm([rows])) == 9 + 16


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: LossWeights(-1.0), "std=-1.0"),
        (lambda: LossWeights(math.nan), "std=nan"),
        (lambda: LossWeights(1.0, rank=-1), "rank=-1"),
        (lambda: LossWeights.std_for(64, 128), "large_batch=64"),
        (lambda: NoisySGD(0.1, eta=-1), "eta=-1"),
        (lambda: NoisySGD(0.1, eta=1, gamma=-0.55), "gamma=-0.55"),
        (lambda: NoisySGD(0.1, eta=1, seed=-1), "seed=-1"),
        (lambda: squared_norm([None]), "gradients"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match="Received: ") as error:
        call()
    assert named in str(error.value) and "\n" not in str(error.value)


# --- other places to run ---------------------------------------------------------------------------


@pytest.mark.mpi
def test_two_ranks_add_the_same_noise_to_the_averaged_gradient(run_ranks):
    pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
    code, output = run_ranks("noise.py")
    assert code == 0, output[-4000:]


@pytest.mark.slow
@pytest.mark.skipif(not TENSORFLOW, reason="this is the run on torch")
@pytest.mark.thorough
def test_all_of_this_on_torch():
    pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not mpi", str(Path(__file__))]
    done = subprocess.run(
        command,
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-4000:]
