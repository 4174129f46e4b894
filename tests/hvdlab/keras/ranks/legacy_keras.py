"""Legacy Keras (TF_USE_LEGACY_KERAS=1) with Horovod's own module, which is correct there.

Leaves `official.npz`: for every setting the weights after two epochs.
"""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from settings import BATCH_SIZE, SETTINGS, chosen, data, start, wrap

hvd.init()
x, y = data()
mine = slice(hvd.rank(), None, 2)
assert tf.keras.Model.__module__.startswith("tf_keras")


def train(optimizer, x, y, batch_size):
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Dense(7, activation="tanh", input_shape=(5,)), layers.Dense(3)]
    )
    model.set_weights(start())
    # Eagerly: Horovod's accumulation of gradients needs it, and few steps are faster so.
    model.compile(optimizer, "mse", run_eagerly=True)
    for first in [*range(0, len(x), batch_size)] * 2:
        model.train_on_batch(x[first : first + batch_size], y[first : first + batch_size])
    return np.concatenate([w.ravel() for w in model.get_weights()])


ends = {}
for name in chosen():
    ends[name] = train(wrap(hvd, tf.keras.optimizers, name), x[mine], y[mine], BATCH_SIZE)
    rows = hvd.allgather(ends[name][None]).numpy()
    np.testing.assert_array_equal(rows[0], rows[1], err_msg=name)

kind, arguments, _ = SETTINGS["nesterov"]
serial = train(getattr(tf.keras.optimizers, kind)(**arguments), x, y, 2 * BATCH_SIZE)
np.testing.assert_allclose(ends["nesterov"], serial, rtol=0, atol=1e-6)
assert np.abs(serial - np.concatenate([w.ravel() for w in start()])).max() > 1e-3
if hvd.rank() == 0:
    np.savez("official.npz", **ends)
