"""Horovod for Keras 3 on TensorFlow or PyTorch, under the names of `horovod.tensorflow.keras`.

    import hvdlab.keras.horovod as hvd      # replaces horovod.tensorflow.keras of Keras 2

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), loss)
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Horovod's own Keras module all-reduces gradients in `apply_gradients` and `_aggregate_gradients`, which
the trainer of Keras 2 calls. The trainer of Keras 3 calls `optimizer.apply(grads, variables)` instead.
So Keras 3 accepts Horovod's module but never averages a gradient: each rank trains its own model, and
no message reports it. This module all-reduces in `apply`: see `hvdlab.keras.distributed_optimizer`.

The environment variable KERAS_BACKEND chooses the backend of Keras. Horovod's extension for that
backend must be built.

Source: horovod/_keras, horovod/tensorflow/keras of Horovod 0.28.1; keras/src/optimizers of 3.15.
"""

from collections.abc import Sequence
from typing import Any

import keras

from hvdlab.keras import callbacks  # noqa: F401
from hvdlab.keras.collectives import (  # noqa: F401
    BACKEND,
    allgather,
    allgather_object,
    allreduce,
    average_metrics,
    broadcast,
    broadcast_object,
    broadcast_variables,
    local_metrics,
    reducescatter,
)
from hvdlab.keras.distributed_optimizer import (  # noqa: F401
    DistributedOptimizer,
    official_module_in_use,
    warn_if_not_averaging,
)

# The names that a learner expects as hvd.<name>.
# fmt: off
# isort: off
if BACKEND == "torch":
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
    from hvdlab.keras._horovod_tensorflow import DistributedGradientTape  # noqa: F401
# isort: on
# fmt: on


def load_model(
    filepath: str,
    custom_optimizers: Sequence[type[keras.optimizers.Optimizer]] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type = Compression.none,
    **options: Any,
) -> keras.Model:
    """Return a saved Keras model whose optimizer is wrapped and keeps its saved state.

    Args:
        filepath: a file that was saved with or without Horovod: `.keras`, or `.h5`. From an `.h5` file
            Keras 3 does not restore the state of the optimizer.
        custom_optimizers: optimizer classes that the file names. Default: none.
        custom_objects: other classes and functions that the file names, by name. Default: none.
        compression: as in `DistributedOptimizer`. Default: `Compression.none`. No file stores it.
        **options: other arguments of `DistributedOptimizer`, which no file stores either.

    Raises:
        TypeError: the model was saved without an optimizer.
    """
    names = {cls.__name__: cls for cls in custom_optimizers or []} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=names)
    old = getattr(model, "optimizer", None)
    model.optimizer = DistributedOptimizer(old, compression=compression, **options)
    return model


def __getattr__(name: str) -> Any:
    if name in ("elastic", "PartialDistributedOptimizer"):
        raise AttributeError(f"hvd.{name} is not offered: this course does not use it.")
    if name in ("DistributedGradientTape", "broadcast_global_variables"):
        raise AttributeError(
            f"hvd.{name} exists only for TensorFlow, but Keras runs on {BACKEND} here."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
