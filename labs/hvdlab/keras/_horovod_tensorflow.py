"""What `hvdlab.keras.horovod` asks of Horovod where Keras runs on TensorFlow.

`_horovod_torch` answers to the same names.

Horovod knows a message by its name, which TensorFlow makes of the scopes of Keras' layers and optimizers.
Those are numbered: a rank that has built or loaded one more model, as who resumes from a file, would wait for
a message that the others send by another name. So each message is named here, and scopes are left out.

Where the ranks share a GPU, or Horovod has no NCCL, nothing may be sent from a GPU. Gradients are sent from
where the caller says (`device_dense`). All else is small or is sent once, so it goes through host memory.
"""

import functools

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext


def to_tensor(value):
    """What can be sent: of bfloat16, which Horovod has not, float32, which holds all of its numbers."""
    tensor = tf.convert_to_tensor(value)
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor


def through_host(operation, value, *arguments, **options):
    """Call one of Horovod's operations on a value in host memory."""
    with tf.device("CPU:0"):
        return operation(to_tensor(value), *arguments, **options)


def _on_host(function):
    @functools.wraps(function)
    def call(*arguments, **options):
        with tf.device("CPU:0"):
            return function(*arguments, **options)

    return call


allgather_object, broadcast_object = map(_on_host, (hvd.allgather_object, hvd.broadcast_object))


def message(name, kind):
    """The name of a message: TensorFlow makes one of its tensor, of which a graph may have several."""
    return name


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


def all_reduce_sparse(grad, name, op, device_sparse, process_set, **dense_only):
    """Gather the slices of all ranks; every row occurs once in the result.

    Adam squares slice by slice, before repeated rows would meet.
    """
    options = {"process_set": process_set, "ignore_name_scope": True}
    with tf.device(device_sparse):
        values = hvd.allgather(to_tensor(grad.values), name=f"{name}_values", **options)
        indices = hvd.allgather(grad.indices, name=f"{name}_indices", **options)
    rows, position = tf.unique(indices)
    values = tf.math.unsorted_segment_sum(values, position, tf.size(rows))
    if op == hvd.Average:
        values /= tf.cast(hvd.size_op(process_set.process_set_id), values.dtype)
    return tf.IndexedSlices(tf.cast(values, grad.values.dtype), rows, grad.dense_shape)


def grouped_all_reduce(grads, name, **options):
    return hvd.grouped_allreduce(grads, name=name, ignore_name_scope=True, **options)


def all_reduce_min(number, name, process_set):
    options = {"process_set": process_set, "ignore_name_scope": True}
    return through_host(hvd.allreduce, number, op=hvd.Min, name=name, **options)


def adasum(deltas, name, compression):
    """Combine dense tensors by Adasum, each by itself, in host memory: every MPI build can do that."""
    options = {"op": hvd.Adasum, "compression": compression, "ignore_name_scope": True}
    options["device_dense"] = "CPU:0"  # Horovod asks for it once more
    return [
        through_host(hvd.allreduce, tf.identity(delta), name=f"{name}_{i}", **options)
        for i, delta in enumerate(deltas)
    ]


def broadcast_variables(variables, root_rank, process_set):
    # Horovod names a message by its variable, which a loaded model may name differently: count instead.
    def broadcast():
        for i, variable in enumerate(native(variables)):
            options = {"name": f"variable_{i}", "process_set": process_set}
            sent = through_host(hvd.broadcast, variable, root_rank, **options)
            variable.assign(tf.cast(sent, variable.dtype))

    tf.function(broadcast, autograph=False)()


def DistributedGradientTape(gradtape, *args, **kwargs):
    """Wrap a `tf.GradientTape` so that `gradient` returns gradients averaged over ranks.

    Arguments as in `horovod.tensorflow`, but the sources may be Keras 3 variables, or a single one.
    """
    tape = hvd.DistributedGradientTape(gradtape, *args, **kwargs)
    reduced = tape.gradient

    def gradient(target, sources, *args, **kwargs):
        if isinstance(sources, list | tuple):
            return reduced(target, native(sources), *args, **kwargs)
        return reduced(target, native([sources]), *args, **kwargs)[0]

    tape.gradient = gradient
    return tape
