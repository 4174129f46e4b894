"""Collective operations of Horovod on Keras 3 values: broadcast, all-reduce, all-gather, reduce-scatter.

`hvdlab.keras.horovod` hands these functions on, so a script calls `hvd.allreduce` and so on. A
collective operation needs all ranks: every rank must call it, in the same order.

Each function sends its value through host memory, even if the value is on a GPU. The values are small
or are sent only once, and host memory works with every build of Horovod and for ranks that share a GPU.
Gradients are sent by `hvdlab.keras.distributed_optimizer` instead.

Importing this module chooses the half of this package that fits Keras' backend, `backend`.

Raises:
    ImportError: Keras runs on another backend than TensorFlow or PyTorch, `tf.keras` is Keras 2, or
        Horovod lacks its extension for the backend.
"""

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    import numpy as np

BACKEND = keras.backend.backend()
if BACKEND not in ("tensorflow", "torch"):
    raise ImportError(
        f"hvdlab.keras.horovod needs Keras on TensorFlow or PyTorch, not on {BACKEND}: set "
        "KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch before Python starts."
    )
if BACKEND == "tensorflow" and os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
    raise ImportError(
        "TF_USE_LEGACY_KERAS is set, so tf.keras is Keras 2, where Horovod's own module averages: "
        "import horovod.tensorflow.keras as hvd, or unset TF_USE_LEGACY_KERAS to use Keras 3."
    )
try:
    importlib.import_module(f"horovod.{BACKEND}")
except ImportError as error:
    raise ImportError(
        f"Horovod with its {BACKEND} extension is missing: `hvdlab doctor` shows how to install it."
    ) from error

if BACKEND == "torch":
    from hvdlab.keras import _horovod_torch as backend
else:
    from hvdlab.keras import _horovod_tensorflow as backend

hvd = backend.hvd
allgather_object, broadcast_object = backend.allgather_object, backend.broadcast_object


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    inplace: bool = False,
) -> None:
    """Overwrite variables on every rank with the values that they have on one rank.

    Args:
        variables: Keras variables, or variables of the backend, in the same order on all ranks.
        root_rank: the rank whose values all ranks get.
        process_set: the ranks that take part. Default: all.
        inplace: accepted for compatibility; it has no effect.
    """
    return backend.broadcast_variables(variables, root_rank, process_set)


def allreduce(
    value: Any, name: str | None = None, average: bool | None = None, **options: Any
) -> Any:
    """Return the reduction of a value over all ranks, by default its average.

    Horovod does not support bfloat16. This function and the functions below return such a value as
    float32.

    Args:
        value: a number, an array, a tensor or a Keras variable, of the same shape on every rank.
        name: name of the operation in Horovod's timeline. Default: chosen by the backend.
        average: older spelling of `op`: True for Average, False for Sum. Default None: `op` counts.
        **options: op (default Average), prescale_factor, postscale_factor, compression and
            process_set, as in `horovod.tensorflow.allreduce`.

    Returns:
        a tensor of the backend with the shape of `value`.
    """
    options |= {"average": average, "name": backend.message(name, "allreduce")}
    return backend.through_host(backend.hvd.allreduce, value, **options)


def allgather(value: Any, name: str | None = None) -> Any:
    """Return the values of all ranks, concatenated along axis 0 in the order of the ranks.

    Args:
        value: a tensor (n, ...), where n may differ between ranks and the other sizes may not. A
            number counts as a tensor of the shape (1,).
        name: name of the operation in Horovod's timeline. Default: chosen by the backend.

    Returns:
        a tensor of the backend whose first size is the sum of n over all ranks.
    """
    tensor, name = backend.to_tensor(value), backend.message(name, "allgather")
    rows = tensor if len(tensor.shape) else tensor[None]
    return backend.through_host(backend.hvd.allgather, rows, name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Return the value that one rank passed, as a tensor of the backend.

    Args:
        value: a number, an array, a tensor or a Keras variable, of the same shape and dtype on every
            rank.
        root_rank: the rank whose value all ranks get.
        name: name of the operation in Horovod's timeline. Default: chosen by the backend.
    """
    name = backend.message(name, "broadcast")
    return backend.through_host(backend.hvd.broadcast, value, root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: Any = hvd.Average) -> Any:
    """Return this rank's slice of the reduction of a value over all ranks.

    Args:
        value: a tensor (n, ...) of the same shape on every rank.
        name: name of the operation in Horovod's timeline. Default: chosen by the backend.
        op: `hvd.Average` (default) or `hvd.Sum`.

    Returns:
        a tensor of the backend: rows of the reduced tensor, about n / size of them.
    """
    name = backend.message(name, "reducescatter")
    return backend.through_host(backend.hvd.reducescatter, value, name=name, op=op)


# How to reduce a variable of a metric: by the aggregation that Keras declares for it.
AGGREGATION_OPS = {"sum": hvd.Sum, "mean": hvd.Average}


def average_metrics(model: keras.Model) -> "dict[str, float | np.ndarray]":
    """Return the metrics of a compiled model over the examples of all ranks, by name.

        model.evaluate(my_share_of_x, my_share_of_y)     # metrics of this rank's examples
        hvd.average_metrics(model)                       # metrics of the examples of all ranks

    Every example counts once, even if the ranks have different numbers of examples, because the
    states of the metrics are summed and the results are computed from the sums. The state of the loss
    is its sum and its count; the state of AUC is its counts at each threshold. The model keeps its own
    states. This works for all metrics of Keras. It works for a metric of your own if its variables can
    be summed, as `keras.metrics.Metric.add_variable` supposes.

    Args:
        model: a compiled model that has evaluated or trained on this rank's examples.

    Returns:
        floats by the name of the metric, or arrays where the result of a metric is not a number.

    Raises:
        ValueError: a variable of a metric declares that it cannot be summed or averaged.
    """
    states = []
    for metric in model.metrics:
        for variable in metric.variables:
            if variable.aggregation not in AGGREGATION_OPS:
                raise ValueError(
                    "A metric's variables must have aggregation='sum' or 'mean'. "
                    f"Received: aggregation={variable.aggregation!r} of {variable.path!r}"
                )
            op = AGGREGATION_OPS[variable.aggregation]
            states.append((variable, allreduce(variable, op=op, name=f"metric_{len(states)}")))
    with keras.StatelessScope(states):
        return local_metrics(model)


def local_metrics(model: keras.Model) -> "dict[str, float | np.ndarray]":
    """Return the metrics of a compiled model over the examples of this rank, by name.

    Args:
        model: a compiled model that has evaluated or trained on this rank's examples.
    """
    results = model.get_metrics_result().items()
    arrays = {name: keras.ops.convert_to_numpy(value) for name, value in results}
    return {name: array if array.ndim else float(array) for name, array in arrays.items()}
