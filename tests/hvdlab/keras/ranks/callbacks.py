"""Averages of metrics, learning rates batch by batch, momentum correction against NumPy."""

import contextlib
import io

import keras
import numpy as np
from common import BATCH_SIZE, EqualRanks, data, my_share, raises, seeded_model

import hvdlab.keras.horovod as hvd

hvd.init()
x, y = map(my_share, data())
SGD = keras.optimizers.SGD


class Rates(keras.callbacks.Callback):
    """Record the learning rate that each batch was trained with."""

    def on_train_begin(self, logs=None):
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


def rates(callbacks, epochs, **fit_options):
    model = seeded_model()
    model.compile(hvd.DistributedOptimizer(SGD(0.4)), "mse")
    record = Rates()
    options = {"batch_size": BATCH_SIZE, "epochs": epochs, "verbose": 0, **fit_options}
    history = model.fit(x, y, callbacks=[*callbacks, record], **options)
    return record.rates, history.history


# Warmup: from 0.4 / 2, in 12 batches, to 0.4; then untouched.
expected = [0.2 * (1 + (step + 1) / 12) for step in range(12)] + [0.4] * 6
said = io.StringIO()
with contextlib.redirect_stdout(said):
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1)
    seen, history = rates([warmup], 3)
np.testing.assert_allclose(seen, expected, rtol=1e-6)
np.testing.assert_allclose(history["lr"], [0.3, 0.4, 0.4], rtol=1e-6)
assert said.getvalue().count("Epoch 2: finished gradual") == (hvd.rank() == 0)

# Schedules: a staircase from epoch 1 to before 3, exponential decay, a smooth function.
Schedule = hvd.callbacks.LearningRateScheduleCallback
seen, _ = rates([Schedule(0.4, lambda epoch: 0.1**epoch, start_epoch=1, end_epoch=3)], 4)
np.testing.assert_allclose(seen, [0.4] * 6 + [0.04] * 6 + [0.004] * 12, rtol=1e-6)
seen, _ = rates([Schedule(0.8, 0.5, start_epoch=1)], 3)
np.testing.assert_allclose(seen, [0.4] * 6 + [0.8] * 6 + [0.4] * 6, rtol=1e-6)
seen, _ = rates([Schedule(1.0, lambda epoch: 1 + epoch, staircase=False)], 1)
np.testing.assert_allclose(seen, 1 + np.arange(6) / 6, rtol=1e-6)


def endless():
    while True:
        yield x[:4], y[:4]


model = seeded_model()
model.compile(hvd.DistributedOptimizer(SGD(0.4)), "mse")
callback = Schedule(1.0, lambda epoch: 1.0, staircase=False)
raises(ValueError, "steps_per_epoch", model.fit, endless(), verbose=0, callbacks=[callback])

# Metrics, validation included: on each rank the mean of both ranks' own values.
local = {}


class Local(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        local.update(logs)


class Seen(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.logs = dict(logs)


model.compile(hvd.DistributedOptimizer(SGD(0.01)), "mse", metrics=["mae"])
seen = Seen()
history = model.fit(
    x,
    y,
    validation_data=(x * (1 + hvd.rank()), y),
    verbose=0,
    callbacks=[Local(), hvd.callbacks.MetricAverageCallback(), seen],
).history
assert set(local) == {"loss", "mae", "val_loss", "val_mae"}
for name in sorted(local):
    both = hvd.allgather(local[name]).numpy()
    assert both[0] != both[1], name
    np.testing.assert_allclose([seen.logs[name], history[name][0]], both.mean(), rtol=1e-6)


# Momentum correction (Goyal et al. 2017, eq. 10): v <- m (new lr / old lr) v + new lr g.
def momentum_reference(weights, correction, nesterov):
    """Train w of mean((x w - y)^2) on the union of the ranks' batches, in float64."""
    xs, ys = (array.astype("f8") for array in data())
    w, velocity, old = weights.astype("f8"), 0.0, 0.4
    for step in range(12):
        rows = slice(8 * (step % 6), 8 * (step % 6) + 8)
        new = 0.4 * (1.0, 0.1)[step // 6]
        gradient = 2 * xs[rows].T @ (xs[rows] @ w - ys[rows]) / ys[rows].size
        if correction:
            velocity = velocity * new / old
        velocity, old = 0.9 * velocity - new * gradient, new
        w = w + (0.9 * velocity - new * gradient if nesterov else velocity)
    return w


for nesterov in (False, True):
    ends = {}
    for correction in (True, False):
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, use_bias=False)])
        w = hvd.broadcast(model.get_weights()[0], 0).numpy()
        optimizer = SGD(0.4, momentum=0.9, nesterov=nesterov)
        model.compile(hvd.DistributedOptimizer(optimizer), "mse")
        callbacks = [
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            Schedule(0.4, lambda epoch: 0.1**epoch, momentum_correction=correction),
            EqualRanks(),
        ]
        options = {"batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0}
        model.fit(x, y, callbacks=callbacks, **options)
        ends[correction] = momentum_reference(w, correction, nesterov)
        np.testing.assert_allclose(model.get_weights()[0], ends[correction], rtol=0, atol=1e-5)
    assert np.abs(ends[True] - ends[False]).max() > 0.01
