"""What a script does with Keras 3 or legacy Keras: compile, fit and its batches, custom loops, files."""

import functools
import inspect
import sys

import numpy as np

from hvdlab.check.events import EPOCHS, number
from hvdlab.check.watch_horovod import remember_line

KEPT, CHANNELS = 4, 64  # as in watch_torch


def watch(keras, watch) -> None:
    """Wrap Keras: the module `keras` (3) or `tf_keras`."""
    optimizers(keras, watch)
    compiling(keras, watch)
    fitting(keras, watch)
    deciding(keras, watch)
    files(keras, watch)


def optimizers(keras, watch) -> None:
    """Note each optimizer, and the steps that it takes outside `fit`."""
    base = keras.optimizers.Optimizer
    make, made = base.__init__, 0

    @functools.wraps(make)
    def __init__(self, *arguments, **options):
        nonlocal made
        make(self, *arguments, **options)
        if not watch.wrapping and watch.line():
            object.__setattr__(self, "_hvdlab_number", made)
            watch.note("optimizer", optimizer=made, name=type(self).__name__)
            made += 1

    base.__init__ = __init__

    name = "apply_gradients" if keras.__name__ == "tf_keras" else "apply"
    apply = getattr(base, name)

    @functools.wraps(apply)
    def noting_apply(self, grads, *arguments, **options):
        pairs = grads = list(grads)
        result = apply(self, grads, *arguments, **options)
        if not watch.fitting and not watch.wrapping:
            variables = arguments[0] if name == "apply" and arguments else None
            if name == "apply_gradients":
                variables = [variable for _, variable in pairs]
            _step_in_a_loop_of_ones_own(self, list(variables or []), watch)
        return result

    setattr(base, name, noting_apply)


def _step_in_a_loop_of_ones_own(optimizer, variables, watch):
    """Note a step now, or put the note into the graph that is being made of it."""
    tf = sys.modules.get("tensorflow")

    def note(*squares):
        watch.step(
            may_end=eager, **_facts(optimizer, watch), weights=[float(s) ** 0.5 for s in squares]
        )

    variables = [getattr(v, "value", v) if hasattr(v, "_value") else v for v in variables]
    eager = tf is None or tf.executing_eagerly()
    if eager:
        note(*(np.square(np.asarray(_array(v), np.float64)).sum() for v in variables))
        return
    squares = [tf.reduce_sum(tf.square(tf.cast(v, tf.float64))) for v in variables]
    tf.py_function(note, squares, [])


def compiling(keras, watch) -> None:
    compile_model = keras.Model.compile

    @functools.wraps(compile_model)
    def noting_compile(self, *arguments, **options):
        compile_model(self, *arguments, **options)
        if optimizer := getattr(self, "optimizer", None):
            watch.note("compile", **_facts(optimizer, watch))

    keras.Model.compile = noting_compile

    train_step = keras.Model.train_step

    @functools.wraps(train_step)
    def noting_train_step(self, data):
        if watch.fitting:
            _note_batch(data, watch)
        return train_step(self, data)

    keras.Model.train_step = noting_train_step


def _note_batch(data, watch):
    """Keep the batch that a step gets, for its hash."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not any(isinstance(part, tf.Tensor) for part in tf.nest.flatten(data)):
        watch.batch = data
        return
    tensors = [part for part in tf.nest.flatten(data) if isinstance(part, tf.Tensor)]
    if tf.executing_eagerly():
        watch.batch = tensors
    elif not _compiled(tf):  # XLA has no way to call Python

        def keep(*parts):
            watch.batch = parts

        tf.py_function(keep, tensors, [])


def _compiled(tf) -> bool:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def fitting(keras, watch) -> None:
    """Cut `fit` short, and add a callback that notes its steps."""
    fit = keras.Model.fit
    signature = inspect.signature(fit)

    class Steps(keras.callbacks.Callback):
        def __init__(self, line, length):
            super().__init__()
            self.line, self.length, self.began = line, length, False

        def on_epoch_begin(self, epoch, logs=None):
            self.entry = [self.line, 0]
            watch.loops = [*watch.loops, self.entry]

        def on_train_batch_begin(self, batch, logs=None):
            self.entry[1] += 1
            watch.waits.append(("a training step", self.line, watch.clock()))

        def on_train_batch_end(self, batch, logs=None):
            watch.waits.pop()
            model = self.model
            watch.loss = (logs or {}).get("loss") if batch == 0 else None  # later: a running mean
            arrays = (np.asarray(_array(v), np.float64).ravel() for v in model.trainable_variables)
            watch.step(
                may_end=False,
                **_facts(model.optimizer, watch),
                weights=[float(np.dot(a, a)) ** 0.5 for a in arrays],
                statistics=_statistics(model) if watch.looks_at_statistics() else None,
            )
            if not self.began:
                self.began = True
                watch.note("loop", self.line, length=self.length, made=None, nested=False)

        def on_epoch_end(self, epoch, logs=None):
            watch.loops = [loop for loop in watch.loops if loop is not self.entry]
            steps = self.entry[1]
            left = "cut" if self.length is None or steps < self.length else "at its end"
            watch.note("pass", self.line, iterations=steps, left=left)
            watch.passes += 1

    @functools.wraps(fit)
    def noting_fit(self, *arguments, **options):
        if watch.fitting:
            return fit(self, *arguments, **options)
        bound = signature.bind(self, *arguments, **options)
        bound.apply_defaults()
        given = bound.arguments
        length, line = _steps(given), watch.line()
        if length is None or length > watch.limit:
            given["steps_per_epoch"] = watch.limit
        given["epochs"] = min(given["epochs"], given["initial_epoch"] + EPOCHS)
        if isinstance(given["callbacks"], list | tuple | None):
            given["callbacks"] = [*(given["callbacks"] or []), Steps(line, length)]
        watch.note("fit", line, length=length)
        watch.fitting = True
        try:
            return fit(*bound.args, **bound.kwargs)
        finally:
            watch.fitting = False

    keras.Model.fit = noting_fit


def _steps(given) -> int | None:
    """Batches of an epoch, as `fit` would count them; None where only the data knows."""
    if given["steps_per_epoch"] is not None:
        return int(given["steps_per_epoch"])
    data = given["x"]
    if hasattr(data, "cardinality"):  # a tf.data.Dataset; -1 and -2 are endless and unknown
        batches = int(data.cardinality())
        return batches if batches >= 0 else None
    if hasattr(data, "shape"):
        return -(-int(data.shape[0]) // int(given["batch_size"] or 32))
    try:
        return len(data)
    except TypeError:
        return None


def _facts(optimizer, watch) -> dict:
    """Number, rate and momentum of an optimizer, and whether Horovod has wrapped it."""
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer  # of a LossScaleOptimizer
    ours = hasattr(type(inner), "_horovod") or hasattr(type(inner), "_allreduce")
    return {
        "optimizer": getattr(inner, "_hvdlab_number", None),
        "wrapped": ours or watch.tape,
        "rate": _rate(inner),
        "momentum": number(getattr(inner, "momentum", 0)) or 0.0,
    }


def _rate(optimizer) -> float | None:
    try:
        rate = optimizer.learning_rate
        return float(_array(rate(optimizer.iterations) if callable(rate) else rate))
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return None


def _array(value):
    value = getattr(value, "value", value) if hasattr(value, "_value") else value  # Keras 3
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return value.numpy() if hasattr(value, "numpy") else value


def _statistics(model) -> list[dict]:
    found = []
    for layer in model._flatten_layers():
        if len(found) < KEPT and hasattr(layer, "moving_mean"):
            found.append({
                "mean": _array(layer.moving_mean)[:CHANNELS].tolist(),
                "variance": _array(layer.moving_variance)[:CHANNELS].tolist(),
                "filled": 1 - layer.momentum ** max(1, _rounds(model)),
            })  # fmt: skip
    return found


def _rounds(model) -> int:
    return int(_array(model.optimizer.iterations))


def deciding(keras, watch) -> None:
    """Note the metric by which a callback decides to stop, or to lower the rate."""
    for name in "EarlyStopping", "ReduceLROnPlateau":
        cls = getattr(keras.callbacks, name)
        remember_line(cls, watch)
        decide = cls.on_epoch_end

        def on_epoch_end(self, epoch, logs=None, decide=decide):
            value = number((logs or {}).get(self.monitor))
            if value is not None:
                line = getattr(self, "_hvdlab_line", None)
                watch.note("decision", line, text=f'logs["{self.monitor}"]', value=value)
            return decide(self, epoch, logs)

        cls.on_epoch_end = functools.wraps(decide)(on_epoch_end)


def files(keras, watch) -> None:
    """Note saved models: HDF5 writes them without Python's `open`."""
    remember_line(keras.callbacks.ModelCheckpoint, watch)
    for name in "save", "save_weights":
        save = getattr(keras.Model, name)

        @functools.wraps(save)
        def noting_save(self, filepath, *arguments, save=save, **options):
            watch.save(filepath)
            return save(self, filepath, *arguments, **options)

        setattr(keras.Model, name, noting_save)
