"""Hooks in Keras 3 or legacy Keras: fit and its batches, custom training loops, files."""

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from hvdlab.check.event_log import Watch
from hvdlab.check.fingerprints import SAMPLE, content, number
from hvdlab.check.hooks import keras_fit
from hvdlab.check.hooks.horovod import remember_line
from hvdlab.check.hooks.keras_compat import array, facts, norm
from hvdlab.check.hooks.tensorflow import compiled, of_shard
from hvdlab.check.hooks.tensorflow_gradients import as_event, keep, sketches
from hvdlab.trace import records


def watch(keras: ModuleType, watch: Watch) -> None:
    """Wrap the functions of Keras.

    Args:
        keras: the module `keras` (3) or `tf_keras`.
    """
    remember_line(keras.callbacks.Callback, watch)
    _norm_layers(keras, watch)
    optimizers(keras, watch)
    batches(keras, watch)
    keras_fit.fitting(keras, watch)
    evaluations(keras, watch)
    loading(keras, watch)
    deciding(keras, watch)
    files(keras, watch)


def _norm_layers(keras: ModuleType, watch: Watch) -> None:
    """Write down where the script builds its first layer of batch norm."""
    build = keras.layers.BatchNormalization.build

    @functools.wraps(build)
    def noting_build(self: Any, *arguments: Any, **options: Any) -> None:
        if not watch.norms:
            watch.norms = True
            watch.note(records.Norm)
        build(self, *arguments, **options)

    keras.layers.BatchNormalization.build = noting_build


def optimizers(keras: ModuleType, watch: Watch) -> None:
    """Write down each optimizer, and the steps that it makes outside `fit`.

    Args:
        keras: the module `keras` (3) or `tf_keras`.
    """
    legacy = keras.__name__ == "tf_keras"
    numbers = itertools.count()
    _optimizer(keras.optimizers.Optimizer, legacy, numbers, watch)
    if legacy:  # keras.optimizers.legacy.SGD has another base class
        _optimizer(keras.optimizers.legacy.Optimizer, legacy, numbers, watch)


def _optimizer(base: type, legacy: bool, numbers: Iterator[int], watch: Watch) -> None:
    """Write down each optimizer of a base class, and the steps that it makes outside `fit`.

    Args:
        legacy: whether it is of legacy Keras.
    """
    initialize = base.__init__

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        if not watch.wrapping and watch.line():
            created = next(numbers)
            object.__setattr__(self, "_hvdlab_number", created)
            object.__setattr__(self, "_hvdlab_rate_line", watch.line())
            # The optimizers of legacy Keras accept `lr` and drop it. Those of Keras 3 refuse it.
            watch.note(
                records.Optimizer,
                optimizer=created,
                name=type(self).__name__,
                api="keras",
                dropped=number(options.get("lr")),
                default=_default_rate(type(self)),
            )

    base.__init__ = __init__

    name = "apply_gradients" if legacy else "apply"
    apply = getattr(base, name)
    signature = inspect.signature(apply)
    first = list(signature.parameters)[1]

    @functools.wraps(apply)
    def noting_apply(self: Any, *arguments: Any, **options: Any) -> Any:
        given = signature.bind(self, *arguments, **options)
        given.arguments[first] = grads = list(given.arguments[first])  # it may be a zip
        if watch.wrapping:
            return apply(*given.args, **given.kwargs)

        def variables() -> list[Any]:
            if legacy:
                return [variable for _, variable in grads]
            return given.arguments.get("trainable_variables") or self._trainable_variables

        if watch.totals:  # Horovod's wrapper may be a copy, without a number
            watch.totals.weights[id(self)] = lambda: [*map(array, variables())]
        gradients = [gradient for gradient, _ in grads] if legacy else grads
        sketched = sketches(gradients, variables(), watch)
        if watch.fitting:
            keep(sketched, watch)
            return apply(*given.args, **given.kwargs)
        start = _squares(variables())
        result = apply(*given.args, **given.kwargs)
        _step_outside_fit(self, sketched, start, variables(), watch)
        return result

    setattr(base, name, noting_apply)


def _default_rate(kind: type) -> float | None:
    """Return the learning rate that an optimizer has if its caller gives none, or None."""
    parameter = inspect.signature(kind.__init__).parameters.get("learning_rate")
    return number(parameter.default) if parameter else None


def _squares(variables: Iterable[Any]) -> list[Any]:
    """Return the squared norm of each variable: numbers, or tensors of the graph that is being built."""
    tf = sys.modules.get("tensorflow")
    if tf is None or tf.executing_eagerly():
        return [norm(variable) ** 2 for variable in variables]
    variables = [getattr(v, "value", v) if hasattr(v, "_value") else v for v in variables]
    return [tf.reduce_sum(tf.square(tf.cast(v, tf.float64))) for v in variables]


def _step_outside_fit(
    optimizer: Any, sketched: Any, start: list, variables: list, watch: Watch
) -> None:
    """Write down a step now, or insert that into the graph that TensorFlow is building of the step.

    Args:
        sketched: what `sketches` returns.
        start: squared norms of the weights before the step.
    """
    tf = sys.modules.get("tensorflow")
    eager = tf is None or tf.executing_eagerly()
    end = _squares(variables)
    line, taped_at = watch.line(), watch.taped_at  # that build the graph
    clipped_at, watch.clipped_at = watch.clipped_at, None

    def note(sketched: Any, *squares: Any) -> None:
        if not watch.writes:
            watch.step(may_end=eager, line=line)
            return
        norms = [float(square) ** 0.5 for square in squares]
        watch.start = norms[: len(start)]
        watch.step(
            may_end=eager,
            line=line,
            **facts(optimizer),
            weights=norms[len(start) :],
            gradient=as_event(np.asarray(sketched), clipped_at),
            taped_at=taped_at,
        )

    if eager:
        note(sketched, *start, *end)
    else:
        tf.py_function(note, [sketched, *start, *end], [])


def batches(keras: ModuleType, watch: Watch) -> None:
    """Keep the batches that `fit` trains with.

    Args:
        keras: the module `keras` (3) or `tf_keras`.
    """
    train_step = keras.Model.train_step

    @functools.wraps(train_step)
    def noting_train_step(self: Any, data: Any) -> Any:
        if watch.fitting:
            _keep_batch(data, watch)
        return train_step(self, data)

    keras.Model.train_step = noting_train_step


def _keep_batch(data: Any, watch: Watch) -> None:
    """Keep the batch of a training step, for its hash."""
    tf = sys.modules.get("tensorflow")
    tensors = [part for part in tf.nest.flatten(data) if isinstance(part, tf.Tensor)] if tf else []
    if not tensors or tf.executing_eagerly():
        watch.batch = tensors or data
    elif not compiled(tf):
        for place, tensor in enumerate(tensors):
            _keep_sample(tf, tensor, place, watch.kept)
        rows = tf.shape(tensors[0])[:1]
        _keep(tf, rows, "rows", watch.kept)
        if watch.totals:
            flat = tf.reshape(tensors[0], tf.concat([rows, [-1]], 0))
            flat = flat[:, :: tf.maximum(1, -(-tf.shape(flat)[1] // SAMPLE))]
            _keep(tf, tf.reshape(flat, [-1]), "inputs", watch.kept)


def _keep_sample(tf: ModuleType, tensor: Any, place: int, kept: dict) -> None:
    """Make a graph put a sample of a tensor into a variable, because a call of Python costs more time.

    Args:
        kept: (index, dtype) -> variable.
    """
    flat = tf.reshape(tensor, [-1])
    _keep(tf, flat[:: tf.maximum(1, -(-tf.size(flat) // SAMPLE))], place, kept)


def _keep(tf: ModuleType, flat: Any, place: int | str, kept: dict) -> None:
    key = place, flat.dtype
    if key not in kept:
        with tf.init_scope(), tf.device("CPU"):
            kept[key] = tf.Variable(tf.zeros([0], flat.dtype), trainable=False, shape=[None])
    kept[key].assign(flat)


def evaluations(keras: ModuleType, watch: Watch) -> None:
    """Write down the evaluations of a model, and whether they read a shard.

    An evaluation is a call of `evaluate` or `predict`, or a call of the model outside a tape.

    Args:
        keras: the module `keras` (3) or `tf_keras`.
    """
    for name in "evaluate", "predict":
        method = getattr(keras.Model, name)
        setattr(keras.Model, name, _noting_evaluation(method, watch))
    call = keras.Model.__call__

    @functools.wraps(call)
    def noting_call(self: Any, *arguments: Any, **options: Any) -> Any:
        if not watch.fitting and not _no_tape():
            _keep_rows(arguments, watch)
        elif watch.loader and not watch.fitting:
            watch.evaluates()
        return call(self, *arguments, **options)

    keras.Model.__call__ = noting_call


def _keep_rows(arguments: tuple, watch: Watch) -> None:
    """Keep how many rows a model gets inside a tape, because no loop may hold the batch."""
    tf = sys.modules.get("tensorflow")
    if tf is None:  # Keras with another backend
        return
    first = next((part for part in tf.nest.flatten(arguments) if isinstance(part, tf.Tensor)), None)
    if first is not None and first.shape.rank != 0:
        rows = tf.shape(first)[0]
        watch.rows = None if tf.is_symbolic_tensor(rows) else int(rows)
        watch.when_run(rows, lambda value: setattr(watch, "rows", int(value)))


def _noting_evaluation(method: Callable, watch: Watch) -> Callable:
    """Return `evaluate` or `predict` of a model, which writes down its data."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def noting(self: Any, *arguments: Any, **options: Any) -> Any:
        fitting = watch.fitting
        watch.fitting = True  # the calls of the model in it are no loop of the script
        try:
            result = method(self, *arguments, **options)
        finally:
            watch.fitting = fitting
        if not watch.fitting and watch.line():
            data = signature.bind(self, *arguments, **options).arguments.get("x")
            found = {"sharded": of_shard(data), "content": content(data)}
            watch.note(records.Evaluate, made=None, loops=watch.loops, **found)
        return result

    return noting


def _no_tape() -> bool:
    """Return whether TensorFlow records no gradients now."""
    record = sys.modules.get("tensorflow.python.eager.record")
    return record is not None and not record.could_possibly_record()


def loading(keras: ModuleType, watch: Watch) -> None:
    """Write down where the script replaces the weights of a model.

    Args:
        keras: the module `keras` (3) or `tf_keras`.
    """
    for name in "set_weights", "load_weights":
        load = getattr(keras.Model, name)

        @functools.wraps(load)
        def noting_load(self: Any, *arguments: Any, load: Any = load, **options: Any) -> Any:
            if watch.line() and not watch.fitting:
                watch.note(records.Load, wrapped=False)
            return load(self, *arguments, **options)

        setattr(keras.Model, name, noting_load)


def deciding(keras: ModuleType, watch: Watch) -> None:
    """Write down the metric by which a callback decides to stop, or to lower the learning rate.

    Args:
        keras: the module `keras` (3) or `tf_keras`.
    """
    for name in "EarlyStopping", "ReduceLROnPlateau":
        cls = getattr(keras.callbacks, name)
        decide = cls.on_epoch_end

        def on_epoch_end(
            self: Any, epoch: int, logs: dict | None = None, decide: Any = decide
        ) -> None:
            line = getattr(self, "_hvdlab_line", None)
            watch.decide(line, f'logs["{self.monitor}"]', (logs or {}).get(self.monitor))
            return decide(self, epoch, logs)

        cls.on_epoch_end = functools.wraps(decide)(on_epoch_end)


def files(keras: ModuleType, watch: Watch) -> None:
    """Write down saved models and logs, which HDF5 and TensorFlow write without Python's `open`.

    Args:
        keras: the module `keras` (3) or `tf_keras`.
    """
    begin = keras.callbacks.CSVLogger.on_train_begin

    @functools.wraps(begin)
    def noting_begin(self: Any, logs: dict | None = None) -> None:
        watch.save(self.filename)
        begin(self, logs)

    keras.callbacks.CSVLogger.on_train_begin = noting_begin
    for name in "save", "save_weights":
        save = getattr(keras.Model, name)

        @functools.wraps(save)
        def noting_save(
            self: Any, filepath: Any, *arguments: Any, save: Any = save, **options: Any
        ) -> Any:
            watch.save(filepath)
            return save(self, filepath, *arguments, **options)

        setattr(keras.Model, name, noting_save)
