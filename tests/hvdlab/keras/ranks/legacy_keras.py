"""Keras 2 (tf_keras, TF_USE_LEGACY_KERAS=1) with Horovod's own module: equal to the serial run."""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(0)
x, y = rng.normal(size=(48, 5)).astype("f4"), rng.normal(size=(48, 3)).astype("f4")
assert tf.keras.Model.__module__.startswith("tf_keras")


def model(optimizer, weights=None):
    tf.keras.utils.set_random_seed(100 + hvd.rank())
    layers = [
        tf.keras.layers.Dense(7, activation="tanh", input_shape=(5,)),
        tf.keras.layers.Dense(3),
    ]
    model = tf.keras.Sequential(layers)
    if weights is not None:
        model.set_weights(weights)
    model.compile(optimizer, "mse")
    return model


def sgd():
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)


def flat(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


distributed = model(hvd.DistributedOptimizer(sgd()))
weights = [hvd.broadcast(w, 0).numpy() for w in distributed.get_weights()]
distributed.set_weights(weights)
mine = slice(hvd.rank(), None, 2)
for start in range(0, 24, 4):
    distributed.train_on_batch(x[mine][start : start + 4], y[mine][start : start + 4])
    rows = hvd.allgather(flat(distributed)[None]).numpy()
    np.testing.assert_array_equal(rows[0], rows[1])

serial = model(sgd(), weights)
for start in range(0, 48, 8):
    serial.train_on_batch(x[start : start + 8], y[start : start + 8])
np.testing.assert_allclose(flat(distributed), flat(serial), rtol=0, atol=1e-6)
assert np.abs(flat(serial) - np.concatenate([w.ravel() for w in weights])).max() > 1e-3
