"""Frequent problems of learners: float16, XLA, late weights, saving and loading, process sets."""

import keras
import numpy as np
from common import (
    BATCH_SIZE,
    EqualRanks,
    assert_equal_on_all_ranks,
    data,
    flat,
    my_share,
    on_all_ranks,
    raises,
    seeded_model,
)

import hvdlab.keras.horovod as hvd

alone = hvd.ProcessSet([0])
hvd.init(process_sets=[alone])
x, y = map(my_share, data())
SGD = keras.optimizers.SGD


def fit(model, x=x, check=None, callbacks=()):
    """Fit one epoch, with the broadcast first and a check of equal ranks after every step."""
    check = check or EqualRanks()
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callbacks = [broadcast, *callbacks, check]
    model.fit(x, y, batch_size=BATCH_SIZE, shuffle=False, verbose=0, callbacks=callbacks)
    assert check.steps == 6


# float16: only rank 1 sees an inf, in batch 2. Both ranks skip that step and halve their scale.
keras.config.set_dtype_policy("mixed_float16")
bad = x.copy()
bad[2 * BATCH_SIZE] = 1e6 if hvd.rank() == 1 else bad[2 * BATCH_SIZE]
for optimizer in (
    hvd.DistributedOptimizer(SGD(0.05, momentum=0.9)),
    hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(SGD(0.05, momentum=0.9))),
):
    model = seeded_model()
    model.compile(optimizer, "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    fit(model, bad)
    assert float(model.optimizer.dynamic_scale.numpy()) == 2.0**14
    assert int(model.optimizer.iterations.numpy()) == 5
    assert np.isfinite(flat(model.weights)).all()
keras.config.set_dtype_policy("float32")

# XLA: "auto" leaves it off where there is no GPU; a learner's True is turned off in time.
model = seeded_model()
model.compile(hvd.DistributedOptimizer(SGD(0.05)), "mse", jit_compile="auto")
assert model.jit_compile is False
model.compile(hvd.DistributedOptimizer(SGD(0.05)), "mse", jit_compile=True)
assert model.jit_compile is True
fit(model)
assert model.jit_compile is False

# Without a callback of ours the error says what to do.
for policy in ("float32", "mixed_float16"):
    keras.config.set_dtype_policy(policy)
    model = seeded_model()
    model.compile(hvd.DistributedOptimizer(SGD(0.05)), "mse", jit_compile=True)
    try:
        model.fit(x[:4], y[:4], verbose=0)
    except RuntimeError as error:
        assert "XLA cannot compile Horovod's operations: pass jit_compile=False" in str(error)
    else:
        raise AssertionError("XLA compiled Horovod's operation")
keras.config.set_dtype_policy("float32")


class EqualAfterFirst(EqualRanks):
    """For a model whose weights exist only in the first step: unequal there, broadcast after it."""

    def on_train_begin(self, logs=None):
        assert not self.model.built


# A model without an input shape is broadcast after its first batch.
model = seeded_model(input_shape=False)
# A loss object: Keras 3 cannot load the name "mse" from its own .h5 files.
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), keras.losses.MeanSquaredError()
)
fit(model, check=EqualAfterFirst())

# Saved with Horovod, loaded without it: the plain class, with its state.
path = f"rank-{hvd.rank()}.keras"
model.save(path)
plain = keras.models.load_model(path)
assert type(plain.optimizer) is keras.optimizers.Adam
np.testing.assert_array_equal(flat(plain.optimizer.variables), flat(model.optimizer.variables))

# Loaded with hvd.load_model: wrapped, with its state (Keras 3 loses that in .h5), and averaging.
for path in (f"rank-{hvd.rank()}.keras", f"rank-{hvd.rank()}.h5"):
    model.save(path)
    loaded = hvd.load_model(path)
    raises(ValueError, "wrapped already", hvd.DistributedOptimizer, loaded.optimizer)
    if path.endswith(".keras"):
        state, saved = flat(loaded.optimizer.variables), flat(model.optimizer.variables)
        np.testing.assert_array_equal(state, saved)
    fit(loaded)
    assert np.abs(flat(loaded.weights) - flat(model.weights)).max() > 1e-4

# All optimizer state is broadcast: here also that of a loss scale and of a learning rate.
model = seeded_model()
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))
model.compile(hvd.DistributedOptimizer(optimizer), "mse")
model.optimizer.build(model.trainable_variables)
for variable in model.optimizer.variables:
    variable.assign(keras.ops.ones_like(variable) * (8 + hvd.rank()))
assert len(model.optimizer.variables) == 14
assert (flat(model.optimizer.variables) == 8 + hvd.rank()).all()
broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
broadcast.set_model(model)
broadcast.on_train_begin()
assert (flat(model.optimizer.variables) == 9).all()

# A variable that is local to a rank keeps its value; dropout seeds are never broadcast.
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
model.layers[0].kernel.assign(model.layers[0].kernel + hvd.rank())
model.layers[0].bias.assign(model.layers[0].bias + hvd.rank())
model.layers[1].seed_generator.state.assign([hvd.rank(), 7])
model.compile(hvd.DistributedOptimizer(SGD(0.0)), "mse")
callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, "", [model.layers[0].bias])
model.fit(x, y, verbose=0, callbacks=[callback])
assert_equal_on_all_ranks([model.layers[0].kernel])
assert np.abs(np.diff(on_all_ranks([model.layers[0].bias]), axis=0)).min() == 1
assert np.diff(on_all_ranks([model.layers[1].seed_generator.state]), axis=0)[0, 0] != 0

# A process set of one rank trains alone, and so does a rank outside of it.
model = seeded_model()
model.compile(hvd.DistributedOptimizer(SGD(0.05), process_set=alone), "mse")
model.fit(x, y, verbose=0)
rows = on_all_ranks(model.weights)
assert np.abs(rows[0] - rows[1]).max() > 0.1

# For resume.py: Adam two epochs on both ranks, the file of rank 0 from between them.
model = seeded_model()
model.compile(
    hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), keras.losses.MeanSquaredError()
)
fit(model)
if hvd.rank() == 0:
    model.save("resume.keras")
fit(model)
if hvd.rank() == 0:
    np.save("resumed.npy", flat(model.weights))
