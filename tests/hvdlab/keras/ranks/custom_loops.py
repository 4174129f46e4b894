"""Custom loops and embeddings on two ranks equal one process on the union of their batches."""

import keras
import numpy as np
import tensorflow as tf
from common import (
    BATCH_SIZE,
    assert_equal_on_all_ranks,
    data,
    flat,
    my_share,
    root_weights,
    seeded_model,
    serial_weights,
)

import hvdlab.keras.horovod as hvd

hvd.init()
x, y = map(my_share, data())
SGD, Adam, RMSprop = keras.optimizers.SGD, keras.optimizers.Adam, keras.optimizers.RMSprop


def sgd():
    return SGD(0.05, momentum=0.9)


# A custom loop through apply_gradients and one through DistributedGradientTape.
def custom_loop(optimizer, make_tape):
    model = seeded_model()
    weights = root_weights(model)
    hvd.broadcast_variables(model.weights, 0)

    @tf.function
    def step(xs, ys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(xs) - ys))
        grads = make_tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    for start in [*range(0, len(x), BATCH_SIZE)] * 2:
        step(x[start : start + BATCH_SIZE], y[start : start + BATCH_SIZE])
        assert_equal_on_all_ranks(model.weights)
    serial = serial_weights(weights, sgd())
    np.testing.assert_allclose(flat(model.weights), serial, rtol=0, atol=1e-6)


custom_loop(hvd.DistributedOptimizer(SGD(0.025, 0.9), op=hvd.Sum), lambda tape: tape)
custom_loop(SGD(0.05, 0.9), hvd.DistributedGradientTape)


# One variable instead of a list, as a tape of TensorFlow takes it: one gradient.
alone = keras.Variable([1.0, 2.0])
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.square(alone.value)) * (hvd.rank() + 1)
gradient = hvd.DistributedGradientTape(tape).gradient(loss, alone)
np.testing.assert_allclose(
    gradient, [3.0, 6.0], rtol=1e-6
)  # the mean over ranks of 2 and 4 times it


# Embeddings give IndexedSlices. Token 1 occurs on both ranks and twice within one: rows must meet.
def embedding_gradients(make_optimizer, distributed, batch, steps=3, **wrap_options):
    table = keras.Variable(np.linspace(-1, 1, 12).reshape(4, 3).astype("f4"))
    unused = keras.Variable([5.0])
    optimizer = make_optimizer()
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, **wrap_options)
    optimizer.build([table, unused])
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.gather(table.value, batch) - 0.3))
        grads = tape.gradient(loss, [table.value, unused.value])
        assert isinstance(grads[0], tf.IndexedSlices) and grads[1] is None
        optimizer.apply(grads, [table, unused])
        if distributed:
            assert_equal_on_all_ranks([table, unused])
    return flat([table, unused])


union = [[1, 1, 0, 1], [2, 1, 2, 3]]
passes = {"backward_passes_per_step": 3, "average_aggregated_gradients": True}
for make in (sgd, lambda: Adam(0.1), lambda: RMSprop(0.1)):
    # A serial run without repeated rows: the dense gradient, summed before the optimizer sees it.
    as_dense = embedding_gradients(make, True, union[hvd.rank()], sparse_as_dense=True)
    sparse = embedding_gradients(make, True, union[hvd.rank()], gradient_predivide_factor=2.0)
    np.testing.assert_allclose(sparse, as_dense, rtol=0, atol=1e-6)
    # Three passes over equal rows are one step.
    in_passes = embedding_gradients(make, True, union[hvd.rank()], **passes)
    once = embedding_gradients(make, True, union[hvd.rank()], 1, sparse_as_dense=True)
    np.testing.assert_allclose(in_passes, once, rtol=0, atol=1e-6)
    assert as_dense[-1] == 5.0
serial = embedding_gradients(sgd, False, union[0] + union[1])
averaged = embedding_gradients(sgd, True, union[hvd.rank()])
np.testing.assert_allclose(averaged, serial, rtol=0, atol=1e-6)
# The sum of two ranks' means is twice the mean of all.
summed = embedding_gradients(lambda: SGD(0.025, momentum=0.9), True, union[hvd.rank()], op=hvd.Sum)
np.testing.assert_allclose(summed, serial, rtol=0, atol=1e-6)
