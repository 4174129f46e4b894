"""What `hvdlab.keras.horovod` asks of Horovod where Keras runs on TensorFlow.

`_horovod_torch` answers to the same names.
"""

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext


def to_tensor(value):
    return tf.convert_to_tensor(value)


def native(variables):
    """Return TensorFlow's variables inside Keras variables; others unchanged."""
    return [v.value if isinstance(v, keras.Variable) else v for v in variables]


def refuse_compilation():
    """Raise a RuntimeError where XLA compiles: it has no kernels for Horovod's operations."""
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise RuntimeError(
            "XLA cannot compile Horovod's operations: pass jit_compile=False to model.compile, or "
            "give fit() one of hvd.callbacks, which turns it off."
        )


def is_sparse(grad):
    return isinstance(grad, tf.IndexedSlices)


def all_reduce_sparse(grad, **options):
    """Gather the slices of all ranks; every row occurs once in the result.

    Adam squares slice by slice, before repeated rows would meet.
    """
    # Horovod takes no scale factors here. Those of an Average cancel out.
    scales = {"prescale_factor": 1.0, "postscale_factor": 1.0}
    slices = hvd.allreduce(grad, **{**options, **scales})
    rows, position = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, position, tf.size(rows))
    return tf.IndexedSlices(values, rows, slices.dense_shape)


def grouped_all_reduce(grads, name, **options):
    return hvd.grouped_allreduce(grads, name=name, **options)


def adasum(deltas, name, compression):
    """Combine dense tensors by Adasum, each by itself, on the CPU: every MPI build can do that."""
    with tf.device("CPU:0"):
        return [
            hvd.allreduce(
                tf.identity(delta),
                op=hvd.Adasum,
                name=f"{name}_{i}",
                compression=compression,
                device_dense="CPU:0",
            )
            for i, delta in enumerate(deltas)
        ]


def broadcast_variables(variables, root_rank, process_set, inplace):
    variables = native(variables)
    if inplace:
        return hvd.broadcast_variables(variables, root_rank, process_set, inplace)

    # Horovod names a message by its variable, and variables of a loaded model may have other names
    # than those of a new one: a rank that resumes from a file would wait for ever. Count instead.
    def broadcast():
        for i, variable in enumerate(variables):
            options = {"name": f"variable_{i}", "process_set": process_set}
            variable.assign(hvd.broadcast(variable, root_rank, **options))

    tf.function(broadcast, autograph=False)()


def DistributedGradientTape(gradtape, *args, **kwargs):
    """Wrap a `tf.GradientTape` so that `gradient` returns gradients averaged over ranks.

    Arguments as in `horovod.tensorflow`, but the sources may be Keras 3 variables.
    """
    tape = hvd.DistributedGradientTape(gradtape, *args, **kwargs)
    reduced = tape.gradient
    tape.gradient = lambda y, xs, *args, **kwargs: reduced(y, native(xs), *args, **kwargs)
    return tape
