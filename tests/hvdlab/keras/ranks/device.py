"""Two ranks train like a single process, on the device that `rank_device` gives them; on every backend.

Each rank prints a line of JSON. At first the ranks compare GPUs that are made up: that must not start
TensorFlow, because its devices could not be chosen any more.
"""

import json
import os

import keras
import numpy as np
from settings import BATCH_SIZE, data

import hvdlab.keras.horovod as hvd
from hvdlab.keras import device

hvd.init()
if "NO_NCCL" in os.environ:
    hvd.nccl_built = lambda: 0
found = {"rank": hvd.rank()}
found["gathered"] = device.backend.gather(hvd, [f"GPU-{hvd.rank()}"])
if "TORCH_HELPER" in os.environ:  # hvdlab.torch.device serves Keras on PyTorch as well
    from hvdlab.torch.device import rank_device

    mine = rank_device(hvd)
    found["device"], options = str(mine.device), {"compression": mine.compression}
else:
    mine = device.rank_device(hvd)
    found["device"], options = mine.gpu or "cpu", {"device_dense": mine.device_dense}
found |= {"ranks": mine.ranks, "direct": mine.direct}
if keras.backend.backend() == "tensorflow" and mine.gpu is None:
    import tensorflow as tf

    # This is refused with a RuntimeError once TensorFlow has started.
    halves = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], halves)


def model():
    keras.utils.set_random_seed(100 + hvd.rank())
    layers = [keras.layers.Dense(7, activation="tanh"), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((5,)), *layers])


def trained(x, y, optimizer, batch_size, weights=None, callbacks=()):
    network = model()
    if weights:
        network.set_weights(weights)
    network.compile(optimizer, "mse", metrics=["mae"], jit_compile=False)
    fit = {"batch_size": batch_size, "epochs": 2, "shuffle": False, "verbose": 0}
    history = network.fit(x, y, **fit, callbacks=list(callbacks)).history
    return np.concatenate([w.ravel() for w in network.get_weights()]), history


x, y = data()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), **options)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]
share = slice(hvd.rank(), None, 2)
first = hvd.broadcast_object(model().get_weights(), root_rank=0)
ours, history = trained(x[share], y[share], optimizer, BATCH_SIZE, callbacks=callbacks)
serial, expected = trained(x, y, keras.optimizers.SGD(0.1, momentum=0.9), 2 * BATCH_SIZE, first)
found["gap"] = float(np.abs(ours - serial).max())
found["moved"] = float(np.abs(serial - np.concatenate([w.ravel() for w in first])).max())
found["metric_gap"] = max(abs(a - b) for a, b in zip(history["mae"], expected["mae"], strict=True))
total = hvd.allreduce(float(hvd.rank()), op=hvd.Sum)
rows = hvd.allgather(np.full((1 + hvd.rank(), 2), hvd.rank(), "float32"))
found["sum"] = float(keras.ops.convert_to_numpy(total))
found["rows"] = keras.ops.convert_to_numpy(rows).tolist()
found["objects"] = hvd.allgather_object(hvd.rank())
print(json.dumps(found) + "\n", end="", flush=True)
