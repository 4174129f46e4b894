"""Horovod for Keras 3 on TensorFlow or PyTorch, under the names of `horovod.tensorflow.keras`.

    import hvdlab.keras.horovod as hvd      # where Keras 2 had horovod.tensorflow.keras

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), loss)
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Horovod's own module all-reduces in `apply_gradients` and `_aggregate_gradients`, the trainer's way
to the weights in Keras 2. In Keras 3 every way ends in `optimizer.apply(grads, variables)`, so the
module is accepted and never averages: each rank trains its own model, and nothing says so. Here the
all-reduce sits in `apply`: see `hvdlab.keras.distributed_optimizer`.

Keras chooses its backend by the variable KERAS_BACKEND; Horovod's extension for it must be built.

Source: horovod/_keras, horovod/tensorflow/keras of Horovod 0.28.1; keras/src/optimizers of 3.15.
"""

import os

import keras

_BACKEND = keras.backend.backend()
if _BACKEND not in ("tensorflow", "torch"):
    raise ImportError(
        f"hvdlab.keras.horovod needs Keras on TensorFlow or PyTorch, not on {_BACKEND}: set "
        "KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch before Python starts."
    )
if _BACKEND == "tensorflow" and os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
    raise ImportError(
        "TF_USE_LEGACY_KERAS is set, so tf.keras is Keras 2, where Horovod's own module is right: "
        "import horovod.tensorflow.keras as hvd, or unset TF_USE_LEGACY_KERAS to use Keras 3."
    )

# The names that a learner expects as hvd.<name>.
# fmt: off
# isort: off
try:
    if _BACKEND == "torch":
        from horovod.torch import (  # noqa: F401
            init, shutdown, is_initialized, start_timeline, stop_timeline,
            rank, size, local_rank, local_size, cross_rank, cross_size,
            mpi_built, mpi_enabled, mpi_threads_supported, gloo_built, gloo_enabled,
            nccl_built, ccl_built, ddl_built, cuda_built, rocm_built,
            ProcessSet, global_process_set, add_process_set, remove_process_set,
            Average, Sum, Adasum, Min, Max, Product, Compression,
        )
        from horovod.torch.mpi_ops import is_homogeneous  # noqa: F401
    else:
        from horovod.tensorflow import (  # noqa: F401
            init, shutdown, is_initialized, start_timeline, stop_timeline, is_homogeneous,
            rank, size, local_rank, local_size, cross_rank, cross_size,
            mpi_built, mpi_enabled, mpi_threads_supported, gloo_built, gloo_enabled,
            nccl_built, ccl_built, ddl_built, cuda_built, rocm_built,
            ProcessSet, global_process_set, add_process_set, remove_process_set,
            Average, Sum, Adasum, Min, Max, Product, Compression,
            broadcast_global_variables,
        )
except ImportError as error:
    raise ImportError(
        f"Horovod with its {_BACKEND} extension is missing: `hvdlab doctor` says what mends it."
    ) from error
# isort: on
# fmt: on
else:
    from hvdlab.keras.distributed_optimizer import (  # noqa: F401
        DistributedOptimizer,
        official_module_in_use,
        warn_if_not_averaging,
    )
    from hvdlab.keras.distributed_optimizer import backend as _backend

    allgather_object, broadcast_object = _backend.allgather_object, _backend.broadcast_object
    if _BACKEND == "tensorflow":
        from hvdlab.keras._horovod_tensorflow import DistributedGradientTape  # noqa: F401


# What follows sends through host memory, also where the value is on a GPU: each of these is small or is
# sent once, and host memory is right for every build of Horovod and for ranks that share a GPU.


def broadcast_variables(variables, root_rank, process_set=global_process_set, inplace=False):
    """Overwrite Keras variables, or those of the backend, on every rank with `root_rank`'s.

    Args:
        inplace: accepted for compatibility.
    """
    return _backend.broadcast_variables(variables, root_rank, process_set)


def allreduce(value, name=None, average=None, **options):
    """Reduce a number, array, tensor or Keras variable over ranks; return a tensor of its shape.

    Horovod has no bfloat16: here and in the functions below such a value comes back as float32.

    Args:
        value: the same shape on every rank.
        name: name of the operation in Horovod's timeline.
        average: old spelling of `op`: True for Average, False for Sum.
        options: op (default Average), prescale_factor, postscale_factor, compression and
            process_set, as in `horovod.tensorflow.allreduce`.
    """
    options |= {"average": average, "name": _backend.message(name, "allreduce")}
    return _backend.through_host(_backend.hvd.allreduce, value, **options)


def allgather(value, name=None):
    """Concatenate all ranks' values along axis 0, where shapes may differ; a number is one row."""
    tensor, name = _backend.to_tensor(value), _backend.message(name, "allgather")
    rows = tensor if len(tensor.shape) else tensor[None]
    return _backend.through_host(_backend.hvd.allgather, rows, name=name)


def broadcast(value, root_rank, name=None):
    """Return the value of `root_rank` as a tensor; the same shape and dtype on every rank."""
    name = _backend.message(name, "broadcast")
    return _backend.through_host(_backend.hvd.broadcast, value, root_rank, name=name)


def reducescatter(value, name=None, op=Average):
    """Reduce over ranks (default: average) and return this rank's share of axis 0."""
    name = _backend.message(name, "reducescatter")
    return _backend.through_host(_backend.hvd.reducescatter, value, name=name, op=op)


# How Keras says that the parts of a metric's state belong together.
_AGGREGATIONS = {"sum": Sum, "mean": Average}


def average_metrics(model):
    """Return the metrics of a compiled model over the examples of all ranks, by name.

        model.evaluate(my_share_of_x, my_share_of_y)     # this rank's examples, and its metrics
        hvd.average_metrics(model)                       # those of all examples

    Every example counts once, however many each rank has: the metrics' states are summed, the loss
    as its sum and count, AUC as its counts at each threshold, and the results computed from the
    sums. The model keeps its own states. All metrics of Keras can be summed like this; a metric of
    your own can if its variables can, as `keras.metrics.Metric.add_variable` supposes.

    Returns:
        dict of floats, or of arrays where the result of a metric is no number.

    Raises:
        ValueError: a metric's variable declares that it cannot be summed or averaged.
    """
    states = []
    for metric in model.metrics:
        for variable in metric.variables:
            if variable.aggregation not in _AGGREGATIONS:
                raise ValueError(
                    "A metric's variables must have aggregation='sum' or 'mean'. "
                    f"Received: aggregation={variable.aggregation!r} of {variable.path!r}"
                )
            op = _AGGREGATIONS[variable.aggregation]
            states.append((variable, allreduce(variable, op=op, name=f"metric_{len(states)}")))
    with keras.StatelessScope(states):
        return local_metrics(model)


def local_metrics(model):
    """Return the metrics of a compiled model over the examples of this rank, by name."""
    results = model.get_metrics_result().items()
    arrays = {name: keras.ops.convert_to_numpy(value) for name, value in results}
    return {name: array if array.ndim else float(array) for name, array in arrays.items()}


def load_model(
    filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, **options
):
    """Load a saved Keras model, its optimizer wrapped and with its state.

    Args:
        filepath: a file saved with or without Horovod: `.keras`, or `.h5`, from which Keras 3
            does not restore the optimizer's state.
        custom_optimizers: list of optimizer classes to know while loading.
        custom_objects: other classes and functions to know while loading, by name.
        compression, options: those of `DistributedOptimizer`, which no file remembers.

    Raises:
        TypeError: the model was saved without an optimizer.
    """
    names = {cls.__name__: cls for cls in custom_optimizers or []} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=names)
    old = getattr(model, "optimizer", None)
    model.optimizer = DistributedOptimizer(old, compression=compression, **options)
    return model


def __getattr__(name):
    if name == "callbacks":  # imported when asked for, because it imports this module
        from hvdlab.keras import callbacks

        return callbacks
    if name in ("elastic", "PartialDistributedOptimizer"):
        raise AttributeError(f"hvd.{name} is not offered: this course does not use it.")
    if name in ("DistributedGradientTape", "broadcast_global_variables"):
        raise AttributeError(f"hvd.{name} is TensorFlow's, and Keras runs on {_BACKEND}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
