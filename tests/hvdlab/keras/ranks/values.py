"""Collective operations take numbers, arrays, tensors and Keras variables. On every backend."""

import keras
import numpy as np
from common import raises

import hvdlab.keras.horovod as hvd

hvd.init()
rank = hvd.rank()
assert (hvd.size(), hvd.local_size(), hvd.cross_size(), hvd.local_rank()) == (2, 2, 1, rank)
assert hvd.mpi_enabled() and hvd.is_initialized() and hvd.is_homogeneous()

tensor = keras.ops.convert_to_tensor
for make in (list, np.float32, tensor, lambda v: keras.Variable(v, dtype="float32")):
    value = make([1.0 + rank, 10.0 * rank])
    np.testing.assert_array_equal(hvd.allreduce(value), [1.5, 5.0])
    np.testing.assert_array_equal(hvd.allreduce(value, op=hvd.Sum), [3.0, 10.0])
    np.testing.assert_array_equal(hvd.allreduce(value, op=hvd.Max, name="m"), [2.0, 10.0])
    np.testing.assert_array_equal(hvd.allreduce(value, "s", False), [3.0, 10.0])
    np.testing.assert_array_equal(hvd.broadcast(value, 1), [2.0, 10.0])
    np.testing.assert_array_equal(hvd.allgather(value), [1.0, 0.0, 2.0, 10.0])
    np.testing.assert_array_equal(hvd.reducescatter(value, op=hvd.Sum), [[3.0], [10.0]][rank])
assert hvd.allreduce(float(rank)).numpy() == 0.5
assert hvd.broadcast(rank, 1).numpy() == 1
np.testing.assert_array_equal(hvd.allgather(rank), [0, 1])
np.testing.assert_array_equal(hvd.allgather(np.full((rank + 1, 2), rank)), [[0, 0], [1, 1], [1, 1]])
assert keras.backend.standardize_dtype(hvd.allreduce(np.zeros(2)).dtype) == "float64"
half = hvd.allreduce([0.1], compression=hvd.Compression.fp16).numpy()[0]
assert half != np.float32(0.1) and abs(half - 0.1) < 1e-4
assert hvd.allgather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}

integers = {"dtype": "int32", "trainable": False}
native = keras.Variable([rank, 2], **integers).value
variables = [keras.Variable([float(rank)]), native, keras.Variable(rank, **integers)]
hvd.broadcast_variables(variables, root_rank=1)
assert [keras.ops.convert_to_numpy(v).tolist() for v in variables] == [[1.0], [1, 2], 1]
if keras.backend.backend() == "tensorflow":
    raises(RuntimeError, "hvd.broadcast_variables", hvd.broadcast_global_variables, 0)
else:
    for name in ("broadcast_global_variables", "DistributedGradientTape"):
        raises(
            AttributeError,
            "exists only for TensorFlow, but Keras runs on torch",
            getattr,
            hvd,
            name,
        )
