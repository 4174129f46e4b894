"""The functions of Horovod that `hvdlab.keras.collectives` needs if Keras runs on TensorFlow.

`_horovod_torch` has the same functions for PyTorch.

Horovod matches messages by name, and TensorFlow makes that name from the scopes of Keras' layers and
optimizers. These scopes are numbered. A rank that has built or loaded one more model, for example because
it resumes from a file, would wait for a message that the other ranks send under another name. So this
module names each message itself and leaves the scopes out.

If the ranks share a GPU, or if Horovod has no NCCL, no tensor may be sent from a GPU. Gradients are sent
from the device that the caller names (`device_dense`). All other tensors are small or are sent only once,
so they go through host memory.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext


def to_tensor(value: Any) -> tf.Tensor:
    """Return a value as a tensor that Horovod can send.

    Horovod does not support bfloat16. Such a value becomes float32, which represents all of its numbers.
    """
    tensor = tf.convert_to_tensor(value)
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor


def through_host(operation: Callable, value: Any, *arguments: Any, **options: Any) -> tf.Tensor:
    """Return the result of one of Horovod's operations on a value in host memory."""
    with tf.device("CPU:0"):
        return operation(to_tensor(value), *arguments, **options)


def _on_host(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with tf.device("CPU:0"):
            return function(*arguments, **options)

    return call


allgather_object, broadcast_object = map(_on_host, (hvd.allgather_object, hvd.broadcast_object))


def message(name: str | None, kind: str) -> str | None:
    """Return the name of a message, or None.

    Without a name TensorFlow names the message after its tensor, because a graph may have several messages
    of a kind.
    """
    return name


def native(variables: Sequence[Any]) -> list[Any]:
    """Return TensorFlow's variables inside Keras variables; other variables unchanged."""
    return [v.value if isinstance(v, keras.Variable) else v for v in variables]


def refuse_compilation() -> None:
    """Raise an error if XLA is compiling the calling function.

    Raises:
        RuntimeError: XLA compiles, but it has no kernels for Horovod's operations.
    """
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise RuntimeError(
            "XLA cannot compile Horovod's operations: pass jit_compile=False to model.compile, or "
            "give fit() one of hvd.callbacks, which turns it off."
        )


def is_sparse(grad: Any) -> bool:
    """Return whether a gradient is given as slices, as those of embeddings are."""
    return isinstance(grad, tf.IndexedSlices)


def all_reduce_sparse(
    grad: tf.IndexedSlices,
    name: str,
    op: Any,
    device_sparse: str,
    process_set: hvd.ProcessSet,
    **dense_only: Any,
) -> tf.IndexedSlices:
    """Return the sum or average of the slices of all ranks, with every row once.

    Rows must not repeat, because Adam squares each slice before it would add repeated rows.
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


def grouped_all_reduce(grads: Sequence[tf.Tensor], name: str, **options: Any) -> list[tf.Tensor]:
    """Return the reductions of several tensors of one dtype, sent in one fused operation."""
    return hvd.grouped_allreduce(grads, name=name, ignore_name_scope=True, **options)


def all_reduce_min(number: tf.Tensor, name: str, process_set: hvd.ProcessSet) -> tf.Tensor:
    """Return the smallest of the numbers of all ranks."""
    options = {"process_set": process_set, "ignore_name_scope": True}
    return through_host(hvd.allreduce, number, op=hvd.Min, name=name, **options)


def adasum(deltas: Sequence[tf.Tensor], name: str, compression: type) -> list[tf.Tensor]:
    """Return dense tensors combined by Adasum, one by one.

    They are sent through host memory, because every build of Horovod with MPI can do that.
    """
    options = {"op": hvd.Adasum, "compression": compression, "ignore_name_scope": True}
    options["device_dense"] = "CPU:0"  # Horovod needs the device also as an argument
    return [
        through_host(hvd.allreduce, tf.identity(delta), name=f"{name}_{i}", **options)
        for i, delta in enumerate(deltas)
    ]


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: hvd.ProcessSet
) -> None:
    """Overwrite variables on every rank with the values that they have on one rank.

    Horovod would name each message after its variable, which may have another name in a loaded model. So
    the messages are numbered.
    """

    def broadcast() -> None:
        for i, variable in enumerate(native(variables)):
            options = {"name": f"variable_{i}", "process_set": process_set}
            sent = through_host(hvd.broadcast, variable, root_rank, **options)
            variable.assign(tf.cast(sent, variable.dtype))

    tf.function(broadcast, autograph=False)()


def DistributedGradientTape(
    gradtape: tf.GradientTape, *args: Any, **kwargs: Any
) -> tf.GradientTape:
    """Return a `tf.GradientTape` whose `gradient` averages the gradients over ranks.

    Returns:
        a tape whose `gradient(target, sources)` also accepts Keras 3 variables, in a list or alone.
    """
    tape = hvd.DistributedGradientTape(gradtape, *args, **kwargs)
    reduced = tape.gradient

    def gradient(target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(sources, list | tuple):
            return reduced(target, native(sources), *args, **kwargs)
        return reduced(target, native([sources]), *args, **kwargs)[0]

    tape.gradient = gradient
    return tape
