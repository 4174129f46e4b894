"""Messages match if one rank has sent more; gradients of different variables are not mixed."""

import keras
import numpy as np
from common import raises

import hvdlab.keras.horovod as hvd

alone = hvd.ProcessSet([0])
hvd.init(process_sets=[alone])
rank = hvd.rank()
for _ in range(3 if rank == 0 else 0):
    hvd.allreduce(1.0, process_set=alone)

assert float(hvd.allreduce(float(rank))) == 0.5
assert keras.ops.convert_to_numpy(hvd.allgather(float(rank))).tolist() == [0, 1]
assert float(hvd.broadcast(float(rank), 1)) == 1
assert float(hvd.reducescatter(np.array([rank, rank + 2.0], "float32"))[0]) == 0.5 + 2 * rank
variable = keras.Variable([float(rank)])
hvd.broadcast_variables([variable], root_rank=1)
assert keras.ops.convert_to_numpy(variable)[0] == 1

# Each rank has used another expert. Of equal shapes Horovod would average one's gradient with the other's;
# on TensorFlow, outside of a tf.function, it does: what is called there has no name of its own.
if keras.backend.backend() == "torch":
    experts = [keras.Variable(np.ones(2, "float32")) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    gradient = keras.ops.ones(2)
    raises(Exception, "", optimizer.apply, [gradient, None][:: 1 - 2 * rank], experts)
    assert all((keras.ops.convert_to_numpy(expert) == 1).all() for expert in experts)
