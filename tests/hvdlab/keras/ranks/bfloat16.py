"""Horovod does not support bfloat16, so such values are sent as float32, on every backend.

The numbers here are small whole ones and halves, which bfloat16 holds.
"""

import keras
import numpy as np
from common import assert_equal_on_all_ranks, flat

import hvdlab.keras.horovod as hvd

hvd.init()
rank = hvd.rank()


def variable(value):
    return keras.Variable([value, 2.0], dtype="bfloat16")


# Of each op: what a step of rate 1 takes from both weights. Adasum counts equal steps once.
STEPS = {hvd.Average: (1.5, 4.0), hvd.Sum: (3.0, 8.0), hvd.Adasum: (1.0, 4.0)}
for op, (first, second) in STEPS.items():
    for inplace in (False, True):
        weights = variable(8.0 * rank)
        hvd.broadcast_variables([weights], root_rank=0, inplace=inplace)
        assert weights.dtype == "bfloat16" and flat([weights]).tolist() == [0.0, 2.0]
    mine = 1.0 if op == hvd.Adasum else 1.0 + rank
    grads = keras.ops.convert_to_tensor([mine, 4.0], "bfloat16")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op)
    for step in (1, 2):
        optimizer.apply([grads], [weights])
        assert_equal_on_all_ranks([weights])
        np.testing.assert_array_equal(flat([weights]), [-first * step, 2.0 - second * step])

for got, wanted in (
    (hvd.allreduce(variable(1.0 + rank)), [1.5, 2.0]),
    (hvd.allgather(variable(rank)), [0.0, 2.0, 1.0, 2.0]),
    (hvd.broadcast(variable(rank), 1), [1.0, 2.0]),
):
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(got), wanted)
