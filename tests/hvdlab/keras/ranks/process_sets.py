"""Four ranks in two sets: each set trains a separate model. On either backend."""

import keras
import numpy as np
from common import BATCH_SIZE, data, flat, raises, seeded_model, serial_weights
from settings import start

import hvdlab.keras.horovod as hvd

sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3]), hvd.ProcessSet([0, 1, 2])]
hvd.init(process_sets=sets)
assert hvd.size() == 4
x, y = data()
mine = sets[hvd.rank() // 2]
SGD = keras.optimizers.SGD


def sgd():
    # The two sets differ by their learning rate.
    return SGD(0.05 if mine is sets[0] else 0.02, momentum=0.9)


for policy in (None, keras.optimizers.LossScaleOptimizer):
    model = seeded_model()
    model.set_weights(start())
    optimizer = hvd.DistributedOptimizer(sgd(), process_set=mine)
    model.compile(policy(optimizer) if policy else optimizer, "mse")
    half = slice(hvd.rank() % 2, None, 2)
    options = {"batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(x[half], y[half], **options)
    serial = serial_weights(start(), sgd())
    np.testing.assert_allclose(flat(model.weights), serial, rtol=0, atol=1e-6)
ends = hvd.allgather(flat(model.weights)[None]).numpy()
np.testing.assert_array_equal(ends[0], ends[1])
assert np.abs(ends[0] - ends[2]).max() > 1e-2

if (
    keras.backend.backend() == "tensorflow"
):  # rows of an embedding: rank r and its neighbour of the set
    import tensorflow as tf

    table = keras.Variable(np.zeros((4, 1), "float32"))
    optimizer = hvd.DistributedOptimizer(SGD(1.0), process_set=mine)
    optimizer.build([table])
    rows = tf.IndexedSlices(tf.constant([[2.0], [4.0]]), tf.constant([hvd.rank(), 3]), [4, 1])
    optimizer.apply([rows], [table])
    expected = -np.bincount([*mine.ranks, 3, 3], [1.0, 1.0, 2.0, 2.0], minlength=4)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(table)[:, 0], expected)

variable = keras.Variable([float(hvd.rank())])
hvd.broadcast_variables([variable], root_rank=mine.ranks[1], process_set=mine)
assert keras.ops.convert_to_numpy(variable)[0] == mine.ranks[1]

adasum = {"optimizer": SGD(), "op": hvd.Adasum}
raises(ValueError, "3 ranks", hvd.DistributedOptimizer, process_set=sets[2], **adasum)
raises(ValueError, "needs all ranks", hvd.DistributedOptimizer, process_set=mine, **adasum)
hvd.DistributedOptimizer(**adasum)

# A rank that ends takes Horovod down on all: the broadcasts of the other sets come first.
hvd.allreduce(0.0)
