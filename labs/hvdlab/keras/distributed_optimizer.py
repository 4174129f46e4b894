"""`hvd.DistributedOptimizer` for Keras 3, on TensorFlow or PyTorch.

In Keras 3 every way to the weights ends in `optimizer.apply(grads, variables)`, and goes on like this:

    unscale the loss -> accumulate passes -> clip -> decay weights -> step -> constraints

The all-reduce comes before all of it or, where passes are accumulated, between accumulating and
clipping: once an update, and clipping sees the gradient of all ranks.

Source: horovod/_keras/__init__.py of Horovod 0.28.1; keras/src/optimizers of Keras 3.15.
"""

import keras

if keras.backend.backend() == "torch":
    from hvdlab.keras import _horovod_torch as backend
else:
    from hvdlab.keras import _horovod_tensorflow as backend

hvd = backend.hvd
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
# What exclude_from_weight_decay and exclude_from_adaptation set; the config of an optimizer lacks it.
EXCLUSIONS = (
    "_exclude_from_weight_decay",
    "_exclude_from_weight_decay_pattern",
    "_unadapted",
    "_unadapted_names",
)


class _Distributed:
    """Goes in front of an optimizer class and combines ranks, once an update."""

    def apply(self, grads, trainable_variables=None):
        if not getattr(self, "gradient_accumulation_steps", None):
            grads = self._all_reduce(grads)
        super().apply(grads, trainable_variables)

    def _clip_gradients(self, grads):
        if self.gradient_accumulation_steps:
            # Only the pass that updates weights comes here, with the mean over the passes.
            grads = self._all_reduce(grads)
            if self._gradient_scale != 1:
                grads = [grad * self._gradient_scale for grad in grads]
        return super()._clip_gradients(grads)

    def _all_reduce(self, grads):
        ranks, op = self._horovod["process_set"], self._horovod["op"]
        if op == hvd.Adasum or not ranks.included() or ranks.size() == 1:
            return grads
        backend.refuse_compilation()
        return _all_reduce_gradients(grads, **self._horovod)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if self._horovod["op"] != hvd.Adasum or hvd.size() == 1:
            return super()._backend_update_step(grads, trainable_variables, learning_rate)
        backend.refuse_compilation()
        # Adasum combines steps, not gradients: it adds what points in different directions, which
        # an adaptive optimizer decides.
        before = [keras.ops.copy(v) for v in trainable_variables]
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        moved = zip(trainable_variables, before, strict=True)
        steps = [backend.to_tensor(variable - start) for variable, start in moved]
        steps = backend.adasum(steps, self._horovod["name"], self._horovod["compression"])
        for variable, start, step in zip(trainable_variables, before, steps, strict=True):
            variable.assign(start + keras.ops.cast(step, start.dtype))


def DistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=hvd.Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=hvd.Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=hvd.global_process_set,
    scale_local_gradients=True,
):
    """Return a copy of a Keras 3 optimizer that averages gradients over ranks before it uses them.

    Clipping, weight decay and moving averages see the averaged gradient. The copy's class has the
    name and module of the optimizer's own, so a saved model loads where there is no Horovod. The
    state of an optimizer in use is copied. One rank sends nothing. In a step all ranks must have
    gradients of the same variables, as Horovod waits for those that one rank lacks: where a rank does
    not use a part of the model, add 0 times it to the loss.

    float16: pass the optimizer to `compile`, which wraps it in a `LossScaleOptimizer`, or wrap it
    so before you pass it here. Gradients are unscaled, then averaged, then clipped. All ranks skip
    a step, and halve their scale, when the gradient of any rank is not finite.

    Args:
        optimizer: a `keras.optimizers.Optimizer` instance of Keras 3.
        name: prefix of the names of messages, also in Horovod's timeline. Two optimizers that update in
            one step need two names if they accumulate gradients. Default: "Distributed<class name>".
        device_dense: where gradients are sent from: "CPU:0" is host memory, which is needed where ranks
            share a GPU (`hvdlab.keras.device`). Default: where they are.
        device_sparse: the same for `IndexedSlices`. Default: `device_dense`.
        compression: `Compression.none`, or `Compression.fp16` to send gradients as float16: 11
            bits, and nothing below 6e-8. On PyTorch also `hvdlab.torch.device.RankDevice.compression`.
        sparse_as_dense: send `IndexedSlices` (embeddings) as full tensors. Default: as slices.
        gradient_predivide_factor: divide by it before the sum, multiply after it. Default 1.
        op: `Average` (default), `Sum`, or `Adasum`: every rank steps by its own gradient, and the
            steps are combined pairwise to (1 - a.b/2|a|^2) a + (1 - a.b/2|b|^2) b, tensor by tensor
            (Maleki et al., Scaling Distributed Training with Adaptive Summation, 2021,
            arXiv:2006.02924). It needs MPI and 2, 4, 8, ... ranks; clipping and optimizer state,
            such as momentum, are each rank's own.
        backward_passes_per_step: batches whose gradients a rank accumulates before one all-reduce
            and one update: Keras's `gradient_accumulation_steps`, which may be set there instead,
            for their mean. Steps of Adam count updates (in legacy Keras batches); those of a learning rate
            schedule count batches. Save a model between updates, not between their batches: what
            has been accumulated is each rank's own.
        average_aggregated_gradients: True: mean over these batches, as always in Keras. False
            (default): their sum, as in Horovod.
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
    inner = optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer
    if isinstance(inner, _Distributed) or official_module_in_use(optimizer):
        raise ValueError("optimizer is wrapped already: call hvd.DistributedOptimizer once.")
    if op not in (hvd.Average, hvd.Sum, hvd.Adasum):
        raise ValueError(f"op must be hvd.Average, hvd.Sum or hvd.Adasum. Received: op={op}")
    if gradient_predivide_factor != 1.0 and op != hvd.Average:
        raise ValueError(f"gradient_predivide_factor needs op=hvd.Average. Received: op={op}")
    groups = groups if groups is not None else num_groups or 1
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"groups must be an int of at least 1. Received: groups={groups!r}")
    if op == hvd.Adasum:
        _check_adasum(process_set)
    config = inner.get_config()
    passes = _set_passes(config, backward_passes_per_step, inner)

    options = {
        "groups": groups,
        "sparse_as_dense": sparse_as_dense,
        "name": name or f"Distributed{type(inner).__name__}",
        "op": op,
        "device_dense": device_dense,
        "device_sparse": device_sparse or device_dense,
        "compression": compression,
        "prescale_factor": 1.0 / gradient_predivide_factor,
        "postscale_factor": gradient_predivide_factor,  # and Horovod's 1 / size
        "process_set": process_set,
    }
    base = type(inner)
    members = {
        "__module__": base.__module__,  # with the name: what a saved model asks for
        "_horovod": options,
        "_gradient_scale": 1 if average_aggregated_gradients else passes,
    }
    if not isinstance(
        inner._learning_rate, keras.Variable
    ):  # a schedule or callable, maybe the script's own
        config["learning_rate"] = inner._learning_rate
    wrapped = type(base.__name__, (_Distributed, base), members).from_config(config)
    # A MultiOptimizer has optimizers of its own.
    parts = [getattr(one, "optimizers", []) for one in (inner, wrapped)]
    for old, new in [(inner, wrapped), *zip(*parts, strict=False)]:
        for name in EXCLUSIONS:
            if hasattr(old, name):
                setattr(new, name, getattr(old, name))
    if optimizer is not inner:
        config = {k: v for k, v in optimizer.get_config().items() if k != "inner_optimizer"}
        wrapped = type(optimizer)(wrapped, **config)
    if optimizer.built and optimizer._trainable_variables:
        wrapped.build(optimizer._trainable_variables)
        for new, old in zip(wrapped.variables, optimizer.variables, strict=True):
            new.assign(old)
    return wrapped


def _check_adasum(process_set):
    ranks = process_set.size()
    if ranks & (ranks - 1):
        raise ValueError(f"op=hvd.Adasum needs 2, 4, 8, ... ranks. Received: {ranks} ranks")
    if ranks < hvd.size():
        raise ValueError("op=hvd.Adasum needs all ranks. Received: a smaller process_set")
    if ranks > 1 and not hvd.mpi_enabled():
        raise ValueError("op=hvd.Adasum needs Horovod's MPI controller: start with mpirun.")


def _set_passes(config, passes, optimizer):
    """Write `backward_passes_per_step` into an optimizer's config, and return it."""
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(
            "backward_passes_per_step must be an int of at least 1. "
            f"Received: backward_passes_per_step={passes!r}"
        )
    steps = config.get("gradient_accumulation_steps", 0)
    if passes not in (1, steps):
        if optimizer.built or steps is not None:
            raise ValueError(
                "backward_passes_per_step becomes Keras's gradient_accumulation_steps: it needs a "
                "new optimizer that does not set it to another number. "
                f"Received: backward_passes_per_step={passes}"
            )
        config["gradient_accumulation_steps"] = passes
    accumulate = type(optimizer)._backend_apply_gradients
    if config.get("gradient_accumulation_steps") and (
        accumulate is not keras.optimizers.Optimizer._backend_apply_gradients
    ):
        raise ValueError(
            "optimizer must leave the accumulation of gradients to Keras. "
            f"Received: {type(optimizer).__name__} with its own _backend_apply_gradients"
        )
    return passes


def _all_reduce_gradients(grads, groups, sparse_as_dense, name, **options):
    """Reduce gradients (tensors, `IndexedSlices` or None) over the ranks of a process set.

    Horovod puts the members of a group together by their places in it. Where ranks have gradients of
    different variables, their groups must not meet: Horovod then says which one waits for which. (It
    cannot where TensorFlow executes eagerly: messages have no names there.)
    """
    reduced, by_dtype = list(grads), {}
    absent = [str(i) for i, grad in enumerate(grads) if grad is None]
    without = f"_without_{'_'.join(absent)}" if absent else ""
    for i, grad in enumerate(grads):
        if backend.is_sparse(grad) and not sparse_as_dense:
            reduced[i] = backend.all_reduce_sparse(grad, f"{name}_{i}", **options)
        elif grad is not None:
            by_dtype.setdefault(keras.backend.standardize_dtype(grad.dtype), []).append(i)

    # One fused operation can carry one dtype only.
    for dtype, indices in by_dtype.items():
        for start in range(min(groups, len(indices))):
            members = indices[start::groups]
            tensors = [backend.to_tensor(grads[i]) for i in members]
            results = backend.grouped_all_reduce(
                tensors, f"{name}_{dtype}_{start}{without}", **options
            )
            for i, result in zip(members, results, strict=True):
                reduced[i] = keras.ops.cast(result, dtype)
    return reduced


_check_local_gradients = LossScaleOptimizer.check_finite


def _check_gradients_of_all_ranks(self, grads):
    """Agree on the finite check of `LossScaleOptimizer` when its inner optimizer is ours.

    Keras looks at the local gradients *before* it calls the inner optimizer. A rank that saw an
    inf would skip the step, and the other ranks would wait in their all-reduce for ever.
    """
    finite = _check_local_gradients(self, grads)
    options = getattr(self.inner_optimizer, "_horovod", {})
    ranks = options.get("process_set")
    if ranks is None or not ranks.included() or ranks.size() == 1:
        return finite
    backend.refuse_compilation()
    finite = backend.to_tensor(keras.ops.cast(finite, "int32"))
    return backend.all_reduce_min(finite, f"{options['name']}_finite", ranks) == 1


LossScaleOptimizer.check_finite = _check_gradients_of_all_ranks


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
