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


def rates(callbacks, epochs, steps_per_execution=1, **fit_options):
    model = seeded_model()
    options = {"steps_per_execution": steps_per_execution} if steps_per_execution > 1 else {}
    model.compile(hvd.DistributedOptimizer(SGD(0.4)), "mse", **options)
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

# A warmup that ends within an epoch: the rate is reached there, and stays.
said = io.StringIO()
with contextlib.redirect_stdout(said):
    seen, _ = rates(
        [hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=1.5, verbose=1)], 3
    )
expected = [0.2 * (1 + (step + 1) / 9) for step in range(9)] + [0.4] * 9
np.testing.assert_allclose(seen, expected, rtol=1e-6)
assert said.getvalue().count("Epoch 2: finished gradual") == (hvd.rank() == 0)

# The same callback in a second fit, of other batches: its epochs are as long as they are there.
warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
rates([warmup], 1, batch_size=2 * BATCH_SIZE)
seen, _ = rates([warmup], 3)
np.testing.assert_allclose(
    seen, [0.2 * (1 + (step + 1) / 12) for step in range(12)] + [0.4] * 6, rtol=1e-6
)

# Batches that are executed together share the rate of their first one, and the goal is reached.
if keras.backend.backend() == "tensorflow":
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2)
    seen, history = rates([warmup], 3, steps_per_execution=6)
    np.testing.assert_allclose(seen, [0.2 * (1 + 1 / 12), 0.2 * (1 + 7 / 12), 0.4], rtol=1e-6)
    np.testing.assert_allclose(history["lr"], [0.2 * (1 + 1 / 12), 0.4, 0.4], rtol=1e-6)

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

# Metrics count every example once: rank 0 holds 7 of 11 held-out examples, and 24 of 45 others.
labels = (y[:, 0] > 0).astype("f4")[:, None]
held_out = slice(0, 7) if hvd.rank() == 0 else slice(7, 11)
full_x, full_labels = data()[0], (data()[1][:, 0] > 0).astype("f4")[:, None]
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, activation="sigmoid")])
model.set_weights([np.linspace(-1, 1, 5)[:, None], np.zeros(1)])
metrics = [
    "accuracy",
    keras.metrics.AUC(name="auc"),
    keras.metrics.R2Score(name="r2"),
    keras.metrics.TruePositives(name="hits"),
    keras.metrics.F1Score(threshold=0.5, name="f1"),  # an array, with a number for each class
]
model.compile(hvd.DistributedOptimizer(SGD(0.4)), "binary_crossentropy", metrics=metrics)


def evaluate(rows, batch_size=3):
    options = {"batch_size": batch_size, "verbose": 0, "return_dict": True}
    return model.evaluate(full_x[rows], full_labels[rows], **options)


whole = evaluate(slice(0, 11))
own = evaluate(held_out)
assert own == hvd.local_metrics(model) and own.keys() == whole.keys()
for _ in range(2):  # it leaves the model's own states alone
    everybody = hvd.average_metrics(model)
    for name, value in whole.items():
        both = hvd.allgather(own[name]).numpy()
        assert abs(both.mean() - value).max() > 1e-3, (
            f"{name}: a mean over ranks must be wrong here"
        )
        assert np.abs(everybody[name] - value).max() < 1e-6, name
assert own == hvd.local_metrics(model)


class Logs(keras.callbacks.Callback):
    """Keep what this place in the list of callbacks sees, and add a log that is no metric."""

    def on_epoch_end(self, epoch, logs=None):
        self.logs = dict(logs)
        logs["rank"] = float(hvd.rank())


for validation_freq in (1, 2):
    before, after = Logs(), Logs()
    rows = slice(None) if hvd.rank() == 0 else slice(0, 21)
    history = model.fit(
        x[rows],
        labels[rows],
        batch_size=BATCH_SIZE,
        validation_data=(full_x[held_out], full_labels[held_out]),
        validation_freq=validation_freq,
        shuffle=False,
        verbose=0,
        callbacks=[before, hvd.callbacks.MetricAverageCallback(), after],
    ).history
    seen = hvd.allgather_object(after.logs)
    assert seen[0] == seen[1] and after.logs["rank"] == 0.5
    local = hvd.allgather_object(before.logs)
    for name in ("loss", "accuracy"):
        weighted = (24 * local[0][name] + 21 * local[1][name]) / 45
        assert abs(sum(rank[name] for rank in local) / 2 - weighted) > 1e-3, name
        np.testing.assert_allclose([after.logs[name], history[name][0]], weighted, rtol=1e-5)
    assert ("val_loss" in after.logs) == (validation_freq == 1)
    if validation_freq == 1:
        for name, value in evaluate(slice(0, 11)).items():
            assert np.abs(after.logs[f"val_{name}"] - value).max() < 1e-6, name
        assert abs(local[0]["val_loss"] - local[1]["val_loss"]) > 1e-3


class Maximum(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="maximum")
        self.maximum = self.add_variable((), "zeros", aggregation="none")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.maximum.assign(keras.ops.max(y_pred))

    def result(self):
        return self.maximum


model.compile("sgd", "mse", metrics=[Maximum()])
model.evaluate(x[:4], labels[:4], verbose=0)
raises(ValueError, "aggregation='none' of 'maximum/", hvd.average_metrics, model)


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
