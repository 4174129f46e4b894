"""`hvd.DistributedOptimizer` for Keras 3, on TensorFlow or PyTorch.

In Keras 3 every update of the weights ends in `optimizer.apply(grads, variables)`, which does this:

    unscale the loss -> accumulate batches -> clip -> decay weights -> step -> constraints

The all-reduce comes first. If the optimizer accumulates the gradients of several batches, the all-reduce
comes after the accumulation and before the clipping. So it happens once per update, and clipping sees
the gradient of all ranks.

Source: horovod/_keras/__init__.py of Horovod 0.28.1; keras/src/optimizers of Keras 3.15.
"""

from collections.abc import Sequence
from typing import Any

import keras

from hvdlab.keras.collectives import backend, hvd

LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
# The attributes that exclude_from_weight_decay and exclude_from_adaptation set. They are not part of the
# config of an optimizer, so a copy made from the config lacks them.
EXCLUSIONS = (
    "_exclude_from_weight_decay",
    "_exclude_from_weight_decay_pattern",
    "_unadapted",
    "_unadapted_names",
)


class _Distributed:
    """Mixin in front of an optimizer class: combines the gradients of the ranks once per update."""

    _horovod: dict[str, Any]  # arguments of _all_reduce_gradients
    _gradient_scale: int  # factor of the averaged gradients when batches are accumulated

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        if not getattr(self, "gradient_accumulation_steps", None):
            grads = self._all_reduce(grads)
        super().apply(grads, trainable_variables)

    def _clip_gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        if self.gradient_accumulation_steps:
            # Keras calls this only for the batch that updates the weights, with the mean over the batches.
            grads = self._all_reduce(grads)
            if self._gradient_scale != 1:
                grads = [grad * self._gradient_scale for grad in grads]
        return super()._clip_gradients(grads)

    def _all_reduce(self, grads: Sequence[Any]) -> Sequence[Any]:
        ranks, op = self._horovod["process_set"], self._horovod["op"]
        if op == hvd.Adasum or not ranks.included() or ranks.size() == 1:
            return grads
        backend.refuse_compilation()
        return _all_reduce_gradients(grads, **self._horovod)

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        if self._horovod["op"] != hvd.Adasum or hvd.size() == 1:
            return super()._backend_update_step(grads, trainable_variables, learning_rate)
        backend.refuse_compilation()
        # Adasum combines steps and not gradients, because it adds what points in different directions,
        # and an adaptive optimizer changes the direction.
        before = [keras.ops.copy(v) for v in trainable_variables]
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        moved = zip(trainable_variables, before, strict=True)
        steps = [backend.to_tensor(variable - start) for variable, start in moved]
        steps = backend.adasum(steps, self._horovod["name"], self._horovod["compression"])
        for variable, start, step in zip(trainable_variables, before, steps, strict=True):
            variable.assign(start + keras.ops.cast(step, start.dtype))


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type = hvd.Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = hvd.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | None = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Return a copy of a Keras 3 optimizer that averages gradients over ranks before it uses them.

    Clipping, weight decay and moving averages see the averaged gradient. The class of the copy has the
    name and the module of the optimizer's own class, so a saved model can be loaded without Horovod.
    The state of an optimizer that is already in use is copied. A single rank sends nothing.

    In one step all ranks must have gradients of the same variables, because Horovod waits for a gradient
    that one rank lacks. If a rank does not use some of the model's variables, add 0 times these variables
    to its loss.

    float16: pass the optimizer to `compile`, which wraps it in a `LossScaleOptimizer`, or wrap it in one
    before you pass it to this function. Gradients are unscaled, then averaged, then clipped. If the
    gradient of any rank is not finite, all ranks skip the step and halve their scale.

    Args:
        optimizer: a `keras.optimizers.Optimizer` of Keras 3.
        name: prefix of the names of messages, also in Horovod's timeline. Two optimizers that update
            variables in the same step need two names if they accumulate gradients. Default:
            "Distributed<class name>".
        device_dense: device from which gradients are sent. "CPU:0" is host memory, which is needed if
            ranks share a GPU (`hvdlab.keras.device`). Default "": the device that holds the gradient.
        device_sparse: the same for `IndexedSlices`. Default: `device_dense`.
        compression: `Compression.none` (default), or `Compression.fp16` to send gradients as float16,
            with 11 significant bits and no magnitude below 6e-8. On PyTorch also
            `hvdlab.torch.device.RankDevice.compression`.
        sparse_as_dense: whether `IndexedSlices` (of embeddings) are sent as full tensors. Default False:
            they are sent as slices.
        gradient_predivide_factor: gradients are divided by this number before the sum and multiplied by
            it after the sum. Default 1.
        op: `Average` (default), `Sum`, or `Adasum`. With Adasum every rank takes a step with its own
            gradient, and the steps are combined pairwise to (1 - a.b/2|a|^2) a + (1 - a.b/2|b|^2) b,
            tensor by tensor (Maleki et al., Scaling Distributed Training with Adaptive Summation, 2021,
            arXiv:2006.02924). Adasum needs MPI and 2, 4, 8, ... ranks. Each rank then has its own
            clipping and its own optimizer state, such as momentum.
        backward_passes_per_step: number of batches whose gradients a rank accumulates before one
            all-reduce and one update. It becomes Keras' `gradient_accumulation_steps`, which you may set
            instead; Keras then takes the mean over the batches. Adam's step number counts updates (in
            legacy Keras it counts batches). A learning-rate schedule counts batches. Save a model
            between updates and not between their batches, because each rank has accumulated other
            gradients. Default 1.
        average_aggregated_gradients: True for the mean over these batches, as Keras does. False
            (default) for their sum, as Horovod does.
        num_groups: older name of `groups`, which counts only if `groups` is None.
        groups: number of fused all-reduces for the dense gradients of one dtype, at least 1. Default 1.
            Lists of variables are not supported.
        process_set: the ranks that average with each other. Default: all.
        scale_local_gradients: accepted for compatibility; it has no effect, because there are no local
            variables.

    Raises:
        TypeError: `optimizer` is not a Keras 3 optimizer.
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
    config = _accumulating_config(inner, backward_passes_per_step)

    base = type(inner)
    members = {
        "__module__": base.__module__,  # a saved model names its optimizer by module and class name
        "_gradient_scale": 1 if average_aggregated_gradients else backward_passes_per_step,
        "_horovod": {
            "groups": groups,
            "sparse_as_dense": sparse_as_dense,
            "name": name or f"Distributed{base.__name__}",
            "op": op,
            "device_dense": device_dense,
            "device_sparse": device_sparse or device_dense,
            "compression": compression,
            "prescale_factor": 1.0 / gradient_predivide_factor,
            "postscale_factor": gradient_predivide_factor,  # Horovod also divides by the size
            "process_set": process_set,
        },
    }
    wrapped = type(base.__name__, (_Distributed, base), members).from_config(config)
    return _with_state(wrapped, optimizer)


def _with_state(
    wrapped: keras.optimizers.Optimizer, optimizer: keras.optimizers.Optimizer
) -> keras.optimizers.Optimizer:
    """Return the wrapped optimizer with what its config lacks: exclusions, loss scaling and state.

    Args:
        wrapped: the new optimizer, without a `LossScaleOptimizer`.
        optimizer: the optimizer that it copies, perhaps a `LossScaleOptimizer`.
    """
    inner = optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer
    # A MultiOptimizer holds several optimizers.
    members = [getattr(each, "optimizers", []) for each in (inner, wrapped)]
    for old, new in [(inner, wrapped), *zip(*members, strict=False)]:
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


def _check_adasum(process_set: hvd.ProcessSet) -> None:
    ranks = process_set.size()
    if ranks & (ranks - 1):
        raise ValueError(f"op=hvd.Adasum needs 2, 4, 8, ... ranks. Received: {ranks} ranks")
    if ranks < hvd.size():
        raise ValueError("op=hvd.Adasum needs all ranks. Received: a smaller process_set")
    if ranks > 1 and not hvd.mpi_enabled():
        raise ValueError("op=hvd.Adasum needs Horovod's MPI controller: start with mpirun.")


def _accumulating_config(optimizer: keras.optimizers.Optimizer, passes: int) -> dict[str, Any]:
    """Return the config of an optimizer, with `backward_passes_per_step` written into it.

    Args:
        optimizer: the optimizer that is copied, without a `LossScaleOptimizer`.
        passes: `backward_passes_per_step` of `DistributedOptimizer`.

    Raises:
        ValueError: the optimizer cannot accumulate that number of batches.
    """
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(
            "backward_passes_per_step must be an int of at least 1. "
            f"Received: backward_passes_per_step={passes!r}"
        )
    config = optimizer.get_config()
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
    if not isinstance(optimizer._learning_rate, keras.Variable):
        # A schedule or a function, which may be a class of the script that Keras cannot deserialize.
        config["learning_rate"] = optimizer._learning_rate
    return config


def _all_reduce_gradients(
    grads: Sequence[Any], groups: int, sparse_as_dense: bool, name: str, **options: Any
) -> list[Any]:
    """Return gradients (tensors, `IndexedSlices` or None), reduced over the ranks of a process set.

    Horovod matches the members of a group by their position in the group. If ranks have gradients of
    different variables, their groups must have different names, so that Horovod reports which rank waits
    for which group. (It cannot report this if TensorFlow executes eagerly, because messages have no names
    there.)

    Args:
        grads: one entry per variable; None if there is no gradient.
        groups: number of fused all-reduces per dtype.
        sparse_as_dense: whether `IndexedSlices` are sent as full tensors.
        name: prefix of the names of messages.
        **options: other arguments of Horovod's grouped all-reduce.
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


def _check_gradients_of_all_ranks(self: LossScaleOptimizer, grads: Sequence[Any]) -> Any:
    """Return whether the gradients of all ranks are finite; replaces `LossScaleOptimizer.check_finite`.

    Keras checks the local gradients *before* it calls the inner optimizer. If one rank saw an infinite
    gradient, it would skip the step, and the other ranks would wait in their all-reduce for ever.
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


def official_module_in_use(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether Horovod's own Keras module, which never averages, wrapped this Keras 3 optimizer.

    Args:
        optimizer: any optimizer, also a `LossScaleOptimizer`.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # look through a LossScaleOptimizer
    official = type(inner).__module__ == "horovod._keras"
    return official and isinstance(inner, keras.optimizers.Optimizer)


def warn_if_not_averaging(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise an error if Horovod's own Keras module wrapped this Keras 3 optimizer.

    Args:
        optimizer: any optimizer, also a `LossScaleOptimizer`.

    Raises:
        RuntimeError: the optimizer would not average gradients; the message names the module to import.
    """
    if official_module_in_use(optimizer):
        raise RuntimeError(
            "Horovod's own Keras module wrapped this optimizer and does nothing in Keras 3: each "
            "rank trains its own model and nothing is averaged. "
            "Write `import hvdlab.keras.horovod as hvd` instead."
        )
