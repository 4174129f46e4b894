"""Schedules against Keras' own, and the rates that a compiled train step really uses."""

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
import keras  # noqa: E402

from hvdlab.data.batches import Batches  # noqa: E402
from hvdlab.keras import LARS  # noqa: E402
from hvdlab.keras.schedules import Schedule, ScheduleCallback  # noqa: E402
from hvdlab.schedules import (  # noqa: E402
    batch_growth,
    constant,
    cosine_decay,
    gradual_warmup,
    polynomial_decay,
    step_decay,
    updates,
)

CHANGING = gradual_warmup(step_decay(0.2, [12, 18], 0.1), 6, start=0.02)
N = 24  # updates


@pytest.fixture(autouse=True)
def float64():
    """Rates are float32 by default, whose rounding could hide a small mistake."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")  # of optimizers
    keras.config.set_dtype_policy(
        "float64"
    )  # of layers: once asked for, it no longer follows floatx
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def number(tensor):
    return float(keras.ops.convert_to_numpy(tensor))


# --- the pure functions ---------------------------------------------------------------------------

schedules = keras.optimizers.schedules
# Keras' schedules take a Python float as float32; 0.0625 is exact in it.
HALF, TENTH = np.float64(0.5), np.float64(0.1)
ORACLES = {
    "square": (
        polynomial_decay(0.5, 20, end=0.0625),
        lambda: schedules.PolynomialDecay(HALF, 20, end_learning_rate=0.0625, power=2),
    ),
    "line": (
        polynomial_decay(0.5, 20, power=1, end=0.0625),
        lambda: schedules.PolynomialDecay(HALF, 20, end_learning_rate=0.0625, power=1),
    ),
    "cosine": (
        cosine_decay(0.5, 20, end=0.0625),
        lambda: schedules.CosineDecay(HALF, 20, alpha=0.125),
    ),
    # Keras still has the old rate at its boundary.
    "steps": (
        step_decay(1.0, [5, 11], 0.1),
        lambda: schedules.PiecewiseConstantDecay([4, 10], np.array([1.0, 0.1, 0.01])),
    ),
}


@pytest.mark.parametrize("schedule, make", ORACLES.values(), ids=ORACLES)
def test_decays(schedule, make):
    expected = make()
    for step in range(25):
        assert schedule(step) == pytest.approx(number(expected(step)), rel=1e-12), step


def test_warmup_then_cosine():
    """Keras' line starts one step earlier, with `start` itself; its decay counts from the warmup."""
    warmup_steps = 6
    expected = schedules.CosineDecay(TENTH, 20, warmup_target=HALF, warmup_steps=warmup_steps)
    decay = cosine_decay(0.5, 20)
    schedule = gradual_warmup(
        lambda step: decay(max(step - warmup_steps, 0)), warmup_steps, start=0.1
    )
    for step in range(warmup_steps):
        assert schedule(step) == pytest.approx(number(expected(step + 1)), rel=1e-12)
    for step in range(warmup_steps, 30):
        assert schedule(step) == pytest.approx(number(expected(step)), rel=1e-12, abs=1e-15)


# --- in fit ---------------------------------------------------------------------------------------


class Path(keras.callbacks.Callback):
    """The one weight of the model before and after each batch."""

    def on_train_begin(self, logs=None):
        self.weights = [self.model.get_weights()[0].item()]

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(self.model.get_weights()[0].item())


def falling(y, prediction):
    return -keras.ops.mean(prediction)


def compiled(optimizer, loss=falling, **options):
    """prediction = weight * x. With `falling` and x = 1 the gradient is -1."""
    one_weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), one_weight])
    model.compile(optimizer, loss, **options)
    assert not model.run_eagerly
    return model


def path(model, n=N, epochs=1, callbacks=(), **options):
    x = np.ones((n, 1))
    record = Path()
    options = {"batch_size": 1, "shuffle": False, "verbose": 0, **options}
    model.fit(x, x, epochs=epochs, callbacks=[*callbacks, record], **options)
    return record.weights


def assert_rates(weights, expected):
    """Gradient -1 at rate r moves the weight by r: the rate that the compiled step really used."""
    np.testing.assert_allclose(np.diff(weights), expected, rtol=1e-12, atol=1e-14)


def test_the_compiled_step_uses_the_table_and_stays_on_its_last_rate():
    model = compiled(keras.optimizers.SGD(Schedule(CHANGING, 13)))
    expected = [CHANGING(min(step, 12)) for step in range(N)]
    assert_rates(path(model, N // 2, epochs=2), expected)
    assert CHANGING(11) != CHANGING(12) != CHANGING(20)


def test_xla_compiles_the_table_too():
    model = compiled(keras.optimizers.SGD(Schedule(CHANGING, 8)), jit_compile=True)
    assert_rates(path(model, 8), [CHANGING(step) for step in range(8)])


def test_a_table_is_saved_with_its_model(tmp_path):
    model = compiled(keras.optimizers.SGD(Schedule(CHANGING, N)), "mse")
    path(model, 9)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config()["learning_rate"]["class_name"] == "Schedule"
    assert number(loaded.optimizer.learning_rate) == pytest.approx(CHANGING(9), rel=1e-12)
    loaded.compile(loaded.optimizer, falling)
    assert_rates(path(loaded, N - 9), [CHANGING(step) for step in range(9, N)])

    again = schedules.deserialize(schedules.serialize(Schedule(CHANGING, N)))
    assert isinstance(again, Schedule) and again.rates == [CHANGING(step) for step in range(N)]


def test_the_callback_sets_every_batch_and_goes_on_in_the_next_fit():
    model = compiled(keras.optimizers.SGD(99.0))
    callbacks = [ScheduleCallback(CHANGING)]
    first = path(model, 5, epochs=2, callbacks=callbacks)
    second = path(model, N - 10, callbacks=callbacks)
    assert_rates(first + second[1:], [CHANGING(step) for step in range(N)])


# --- momentum correction --------------------------------------------------------------------------

MOMENTUM = 0.875  # Keras passes it through float32, where 0.9 would be 0.89999998


def cosine_loss(y, prediction):
    return keras.ops.mean(1 - keras.ops.cos(2 * prediction))


def rate_outside(nesterov):
    """v <- momentum v + g, w <- w - rate v, in Python."""
    w, velocity = 1.0, 0.0
    for rate in map(CHANGING, range(N)):
        gradient = 2 * np.sin(2 * w)
        velocity = MOMENTUM * velocity + gradient
        w -= rate * (MOMENTUM * velocity + gradient if nesterov else velocity)
    return w


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_correction_makes_the_rate_inside_equal_the_rate_outside(nesterov):
    ends = {}
    for correction in (True, False):
        sgd = keras.optimizers.SGD(0.02, momentum=MOMENTUM, nesterov=nesterov)
        callback = ScheduleCallback(CHANGING, momentum_correction=correction)
        ends[correction] = path(compiled(sgd, cosine_loss), callbacks=[callback])[-1]
    assert ends[True] == pytest.approx(rate_outside(nesterov), rel=1e-12)
    assert ends[False] != pytest.approx(ends[True], rel=0.1)


def test_a_rate_of_zero_forgets_the_velocity():
    model = compiled(keras.optimizers.SGD(0.1, momentum=MOMENTUM))
    weights = path(model, 4, callbacks=[ScheduleCallback(lambda step: 0.1 * (step != 2), True)])
    assert_rates(weights, [0.1, 0.1 * (MOMENTUM + 1), 0, 0.1])


def test_momentum_correction_reaches_rmsprop_lars_and_a_wrapped_optimizer():
    def constant_rate(optimizer):
        return path(compiled(optimizer), 6, callbacks=[ScheduleCallback(constant(0.1), True)])

    for make in (
        lambda: keras.optimizers.RMSprop(0.1, momentum=0.9),
        lambda: LARS(0.1, momentum_form="paper"),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), 1.0),
    ):
        assert constant_rate(make()) == path(compiled(make()), 6)  # nothing to correct

        # From the third update on at half the rate: the velocity is halved, the updates halve.
        model = compiled(make())
        path(model, 2)
        velocity = _velocity(model.optimizer)
        callback = ScheduleCallback(lambda step: 0.05, momentum_correction=True)
        callback.set_model(model)
        callback.on_train_batch_begin(0)
        assert _velocity(model.optimizer) == pytest.approx(velocity / 2, rel=1e-12)


def _velocity(optimizer):
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    name = "velocity" if isinstance(optimizer, LARS) else "momentum"
    (variable,) = [v for v in optimizer.variables if name in v.path]
    return variable.numpy().item()


# --- a growing batch, and bad arguments -----------------------------------------------------------


def test_one_fit_per_epoch_trains_with_a_growing_batch():
    images, labels = np.ones((50, 1, 1, 1), np.uint8), np.arange(50)
    images_to_one = keras.layers.Flatten()
    one_weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1, 1, 1)), images_to_one, one_weight])
    model.compile(keras.optimizers.SGD(99.0), falling)
    plan = batch_growth(4, [1, 2, 3], 2, batch_size=4, max_batch_size=8, learning_rate=0.1)
    weights, epochs = [0.0], []
    for epoch, (batch_size, rate) in enumerate(plan):
        batches = Batches(images, labels, batch_size // 2, rank=1, size=2)
        record = Path()
        model.optimizer.learning_rate = rate
        history = model.fit(
            batches.epoch(epoch),
            steps_per_epoch=len(batches),
            shuffle=False,
            initial_epoch=epoch,
            epochs=epoch + 1,
            callbacks=[record],
            verbose=0,
        )
        weights += record.weights[1:]
        epochs += history.epoch
        assert len(batches.examples_read(epoch)) == 25  # each example of the shard once
    assert_rates(weights, [0.1] * 13 + [0.1] * 7 + [0.05] * 7 + [0.025] * 7)
    assert len(weights) - 1 == updates(50, [batch_size for batch_size, _ in plan])
    assert number(model.optimizer.iterations) == len(weights) - 1 and epochs == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: Schedule(0.1, 10), "schedule must be a function: step -> learning rate"),
        (lambda: ScheduleCallback(0.1), "schedule must be a function: step -> learning rate"),
        (lambda: Schedule(CHANGING, 0), "total_steps must be a whole number.*total_steps=0"),
        (lambda: Schedule(CHANGING, 1.5), "total_steps must be a whole number.*total_steps=1.5"),
    ],
)
def test_bad_arguments(make, text):
    with pytest.raises(ValueError, match=text):
        make()
