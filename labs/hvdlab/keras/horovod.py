"""Horovod for Keras 3 with the TensorFlow backend, under the names of `horovod.tensorflow.keras`.

    import hvdlab.keras.horovod as hvd      # where Keras 2 had horovod.tensorflow.keras

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), loss)
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Horovod's own module all-reduces in `apply_gradients` and `_aggregate_gradients`, the trainer's way
to the weights in Keras 2. In Keras 3 every way ends in `optimizer.apply(grads, variables)`, so the
module is accepted and never averages: each rank trains its own model, and nothing says so. Here the
all-reduce sits in `apply`.

Source: horovod/_keras, horovod/tensorflow/keras of Horovod 0.28.1; keras/src/optimizers of 3.15.
"""

import os

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"hvdlab.keras.horovod needs Keras on TensorFlow, not on {keras.backend.backend()}: set "
        "KERAS_BACKEND=tensorflow before Python starts, or use horovod.torch with PyTorch models."
    )
if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
    raise ImportError(
        "TF_USE_LEGACY_KERAS is set, so tf.keras is Keras 2, where Horovod's own module is right: "
        "import horovod.tensorflow.keras as hvd, or unset TF_USE_LEGACY_KERAS to use Keras 3."
    )
try:
    import horovod.tensorflow as _hvd
    import tensorflow as tf

    # The names that a learner expects as hvd.<name>.
    # fmt: off
    # isort: off
    from horovod.tensorflow import (  # noqa: F401
        init, shutdown, is_initialized, start_timeline, stop_timeline, is_homogeneous,
        rank, size, local_rank, local_size, cross_rank, cross_size,
        mpi_built, mpi_enabled, mpi_threads_supported, gloo_built, gloo_enabled,
        nccl_built, ccl_built, ddl_built, cuda_built, rocm_built,
        ProcessSet, global_process_set, add_process_set, remove_process_set,
        Average, Sum, Adasum, Min, Max, Product, Compression,
        allgather_object, broadcast_object, broadcast_global_variables,
    )
    # isort: on
    # fmt: on
except ImportError as error:
    raise ImportError(
        "Horovod with its TensorFlow extension is missing: run `make setup`."
    ) from error


class _Distributed:
    """Goes in front of an optimizer class and all-reduces what reaches `apply`."""

    def apply(self, grads, trainable_variables=None):
        super().apply(_all_reduce_gradients(grads, **self._horovod), trainable_variables)


def DistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """Return a copy of a Keras 3 optimizer that averages gradients over ranks before it uses them.

    Clipping, weight decay, moving averages and gradient accumulation see the averaged gradient.
    The copy's class has the name and module of the optimizer's own, so a saved model loads where
    there is no Horovod. The state of an optimizer in use is copied. One rank sends nothing.

    float16: pass the optimizer to `compile`, which wraps it in a `LossScaleOptimizer`, or wrap it
    so before you pass it here. All ranks skip a step when the gradient of any rank is not finite.
    Gradient accumulation all-reduces every micro-step: right, but more bytes than it must send.

    Args:
        optimizer: a `keras.optimizers.Optimizer` instance of Keras 3.
        name: prefix of names in Horovod's timeline. Default: "Distributed<class name>".
        device_dense, device_sparse: where to communicate. Default: TensorFlow chooses.
        compression: `Compression.none`, or `Compression.fp16` to send rounded gradients.
        sparse_as_dense: send `IndexedSlices` (embeddings) as full tensors. Default: as slices.
        gradient_predivide_factor: divide by it before the sum, multiply after it. Default 1.
        op: `Average` (default) or `Sum`.
        backward_passes_per_step: the optimizer's `gradient_accumulation_steps`. Over 1 it needs
            `average_aggregated_gradients=True`, because Keras averages what it accumulates.
        groups, num_groups: number of fused all-reduces for the dense gradients of one dtype, an
            int of at least 1 (default). Lists of variables are not supported.
        process_set: the ranks that average with each other. Default: all.
        scale_local_gradients: accepted for compatibility; there are no local variables here.

    Raises:
        TypeError: `optimizer` is no Keras 3 optimizer.
        ValueError: the optimizer is wrapped already, or an argument is not supported.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"optimizer must be an instance of keras.optimizers.Optimizer. Received: {optimizer!r}"
        )
    inner = getattr(optimizer, "inner_optimizer", None)
    is_ours = isinstance(optimizer, _Distributed) or isinstance(inner, _Distributed)
    if is_ours or official_module_in_use(optimizer):
        raise ValueError("optimizer is wrapped already: call hvd.DistributedOptimizer once.")
    if op not in (Average, Sum):
        raise ValueError(f"op must be hvd.Average or hvd.Sum. Received: op={op}")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=hvd.Average. Received: op=hvd.Sum")
    groups = groups if groups is not None else num_groups or 1
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"groups must be an int of at least 1. Received: groups={groups!r}")

    config = optimizer.get_config()
    if backward_passes_per_step != 1:
        fresh = not optimizer.built and config.get("gradient_accumulation_steps", 0) is None
        if not (average_aggregated_gradients and fresh):
            raise ValueError(
                "backward_passes_per_step becomes Keras's gradient_accumulation_steps: it needs "
                "average_aggregated_gradients=True and a new optimizer that does not set it. "
                f"Received: backward_passes_per_step={backward_passes_per_step}"
            )
        config["gradient_accumulation_steps"] = backward_passes_per_step

    base = type(optimizer)
    options = {
        "groups": groups,
        "sparse_as_dense": sparse_as_dense,
        "name": name or f"Distributed{base.__name__}",
        "op": op,
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "prescale_factor": 1.0 / gradient_predivide_factor,
        "postscale_factor": gradient_predivide_factor,  # and Horovod's 1 / size
        "process_set": process_set,
    }
    # The name and module of the optimizer's own class: what a saved model asks for.
    members = {"__module__": base.__module__, "_horovod": options}
    wrapped = type(base.__name__, (_Distributed, base), members).from_config(config)
    if optimizer.built and optimizer._trainable_variables:
        wrapped.build(optimizer._trainable_variables)
        for new, old in zip(wrapped.variables, optimizer.variables, strict=True):
            new.assign(old)
    return wrapped


def _all_reduce_gradients(grads, groups, sparse_as_dense, name, **options):
    """Reduce gradients (tensors, `IndexedSlices` or None) over the ranks of a process set."""
    if not options["process_set"].included() or options["process_set"].size() == 1:
        return grads
    reduced, by_dtype = list(grads), {}
    for i, grad in enumerate(grads):
        if sparse_as_dense and isinstance(grad, tf.IndexedSlices):
            grad = tf.convert_to_tensor(grad)
        if isinstance(grad, tf.IndexedSlices):
            # Horovod gathers the slices of all ranks. Let every row occur once in them: Adam
            # squares slice by slice, before repeated rows would meet.
            slices = _hvd.allreduce(grad, **options)
            rows, position = tf.unique(slices.indices)
            values = tf.math.unsorted_segment_sum(slices.values, position, tf.size(rows))
            reduced[i] = tf.IndexedSlices(values, rows, slices.dense_shape)
        elif grad is not None:
            by_dtype.setdefault(grad.dtype, []).append((i, grad))

    # One fused operation can carry one dtype only.
    for dtype, members in by_dtype.items():
        for start in range(min(groups, len(members))):
            indices, tensors = zip(*members[start::groups], strict=True)
            label = f"{name}_{dtype.name}_{start}"
            results = _hvd.grouped_allreduce(list(tensors), name=label, **options)
            for i, result in zip(indices, results, strict=True):
                reduced[i] = result
    return reduced


_check_local_gradients = keras.optimizers.LossScaleOptimizer.check_finite


def _check_gradients_of_all_ranks(self, grads):
    """Agree on the finite check of `LossScaleOptimizer` when its inner optimizer is ours.

    Keras looks at the local gradients *before* it calls the inner optimizer. A rank that saw an
    inf would skip the step, and the other ranks would wait in their all-reduce for ever.
    """
    finite = _check_local_gradients(self, grads)
    ranks = getattr(self.inner_optimizer, "_horovod", {}).get("process_set")
    if ranks is None or not ranks.included():
        return finite
    return _hvd.allreduce(tf.cast(finite, tf.int32), op=Min, process_set=ranks) == 1


keras.optimizers.LossScaleOptimizer.check_finite = _check_gradients_of_all_ranks


def official_module_in_use(optimizer) -> bool:
    """Tell whether Horovod's own Keras module wrapped this Keras 3 optimizer: it never averages."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # look through a LossScaleOptimizer
    official = type(inner).__module__ == "horovod._keras"
    return official and isinstance(inner, keras.optimizers.Optimizer)


def warn_if_not_averaging(optimizer):
    """Raise a RuntimeError if Horovod's own Keras module wrapped this Keras 3 optimizer."""
    if official_module_in_use(optimizer):
        raise RuntimeError(
            "Horovod's own Keras module wrapped this optimizer and does nothing in Keras 3: each "
            "rank trains its own model and nothing is averaged. "
            "Write `import hvdlab.keras.horovod as hvd` instead."
        )


def DistributedGradientTape(gradtape, *args, **kwargs):
    """Wrap a `tf.GradientTape` so that `gradient` returns gradients averaged over ranks.

    Arguments as in `horovod.tensorflow`, but the sources may be Keras 3 variables.
    """
    tape = _hvd.DistributedGradientTape(gradtape, *args, **kwargs)
    reduced = tape.gradient
    tape.gradient = lambda y, xs, *args, **kwargs: reduced(y, _tf_variables(xs), *args, **kwargs)
    return tape


def _tf_variables(variables):
    return [v.value if isinstance(v, keras.Variable) else v for v in variables]


def broadcast_variables(variables, root_rank, process_set=global_process_set, inplace=False):
    """Overwrite Keras or TensorFlow variables on every rank with those of `root_rank`."""
    return _hvd.broadcast_variables(_tf_variables(variables), root_rank, process_set, inplace)


def allreduce(value, name=None, average=None, **options):
    """Reduce a number, array, tensor or Keras variable over ranks; return a tensor of its shape.

    Args:
        value: the same shape on every rank.
        name: name of the operation in Horovod's timeline.
        average: old spelling of `op`: True for Average, False for Sum.
        options: op (default Average), prescale_factor, postscale_factor, compression and
            process_set, as in `horovod.tensorflow.allreduce`.
    """
    return _hvd.allreduce(tf.convert_to_tensor(value), average, name=name, **options)


def allgather(value, name=None):
    """Concatenate all ranks' values along axis 0, where shapes may differ; a number is one row."""
    tensor = tf.convert_to_tensor(value)
    return _hvd.allgather(tensor if tensor.shape.rank else tensor[None], name=name)


def broadcast(value, root_rank, name=None):
    """Return the value of `root_rank` as a tensor; the same shape and dtype on every rank."""
    return _hvd.broadcast(tf.convert_to_tensor(value), root_rank, name=name)


def reducescatter(value, name=None, op=Average):
    """Reduce over ranks (default: average) and return this rank's share of axis 0."""
    return _hvd.reducescatter(tf.convert_to_tensor(value), name=name, op=op)


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none):
    """Load a saved Keras model, its optimizer wrapped and with its state.

    Args:
        filepath: a file saved with or without Horovod: `.keras`, or `.h5`, from which Keras 3
            does not restore the optimizer's state.
        custom_optimizers: list of optimizer classes to know while loading.
        custom_objects: other classes and functions to know while loading, by name.
        compression: as in `DistributedOptimizer`.

    Raises:
        TypeError: the model was saved without an optimizer.
    """
    names = {cls.__name__: cls for cls in custom_optimizers or []} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=names)
    old = getattr(model, "optimizer", None)
    model.optimizer = DistributedOptimizer(old, compression=compression)
    return model


def __getattr__(name):
    if name == "callbacks":  # imported when asked for, because it imports this module
        from hvdlab.keras import callbacks

        return callbacks
    if name in ("elastic", "PartialDistributedOptimizer"):
        raise AttributeError(f"hvd.{name} is not offered: this course does not use it.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
