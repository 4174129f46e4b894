"""LARS, LAMB and NovoGrad: two ranks x batch 4 take ten steps of one process x batch 8."""

import keras
import numpy as np
from common import BATCH_SIZE, EqualRanks, data, flat, my_share, on_all_ranks, root_weights
from keras import layers

import hvdlab.keras.horovod as hvd
from hvdlab.keras.optimizers import LAMB, LARS, NovoGrad

hvd.init()
assert hvd.size() == 2
X, Y = (rows[: 2 * BATCH_SIZE * 5] for rows in data())  # five steps an epoch


def tied_weights():
    """A layer used twice: its kernel has one gradient, the sum of two."""
    inputs = keras.Input((5,))
    shared = layers.Dense(5, activation="tanh")
    return keras.Model(inputs, layers.Dense(3)(shared(shared(inputs))))


def frozen_layer():
    frozen = layers.Dense(7, activation="tanh", trainable=False)
    return keras.Sequential([keras.Input((5,)), frozen, layers.Dense(6), layers.Dense(3)])


def fit(model, optimizer, x, y, batch_size, callbacks=()):
    model.compile(optimizer, "mse", run_eagerly=not callbacks)
    model.fit(x, y, batch_size, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return flat(model.weights)


def two_ranks_are_one_process(make_model, make_optimizer):
    keras.utils.set_random_seed(100 + hvd.rank())
    model = make_model()
    before = on_all_ranks(model.weights)
    assert np.abs(before[0] - before[1]).max() > 0.1, "seeds must differ for this test to mean much"
    serial_model = make_model()
    serial_model.set_weights(root_weights(model))

    optimizer = hvd.DistributedOptimizer(make_optimizer())
    assert optimizer.get_config() == make_optimizer().get_config()
    equal_ranks = EqualRanks()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), equal_ranks]
    weights = fit(model, optimizer, my_share(X), my_share(Y), BATCH_SIZE, callbacks)
    assert equal_ranks.steps == 10

    serial = fit(serial_model, make_optimizer(), X, Y, 2 * BATCH_SIZE)
    np.testing.assert_allclose(weights, serial, rtol=0, atol=1e-6)
    assert np.abs(serial - before[0]).max() > 1e-3
    return model


for make_optimizer in (
    lambda: LARS(0.5, weight_decay=0.01, trust_coefficient=0.05),
    lambda: LAMB(0.01, weight_decay=0.01),
    lambda: NovoGrad(0.01, weight_decay=0.01),
):
    for make_model in (tied_weights, frozen_layer):
        model = two_ranks_are_one_process(make_model, make_optimizer)

    # Saved with Horovod's optimizer, loaded where there is no Horovod.
    model.save(f"{hvd.rank()}.keras")
    loaded = keras.models.load_model(f"{hvd.rank()}.keras")
    assert type(loaded.optimizer) is type(make_optimizer())
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    np.testing.assert_array_equal(flat(loaded.optimizer.variables), flat(model.optimizer.variables))
