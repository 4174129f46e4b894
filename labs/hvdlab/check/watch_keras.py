"""What a script does with Keras 3 or legacy Keras: compile, fit and its batches, custom loops, files."""

import functools
import sys

import numpy as np

from hvdlab.check import watch_fit
from hvdlab.check.keras_facts import array, facts
from hvdlab.check.samples import number
from hvdlab.check.watch_horovod import remember_line


def watch(keras, watch) -> None:
    """Wrap Keras: the module `keras` (3) or `tf_keras`."""
    optimizers(keras, watch)
    compiling(keras, watch)
    watch_fit.fitting(keras, watch)
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
            may_end=eager, **facts(optimizer, watch), weights=[float(s) ** 0.5 for s in squares]
        )

    variables = [getattr(v, "value", v) if hasattr(v, "_value") else v for v in variables]
    eager = tf is None or tf.executing_eagerly()
    if eager:
        note(*(np.square(np.asarray(array(v), np.float64)).sum() for v in variables))
        return
    squares = [tf.reduce_sum(tf.square(tf.cast(v, tf.float64))) for v in variables]
    tf.py_function(note, squares, [])


def compiling(keras, watch) -> None:
    compile_model = keras.Model.compile

    @functools.wraps(compile_model)
    def noting_compile(self, *arguments, **options):
        compile_model(self, *arguments, **options)
        if optimizer := getattr(self, "optimizer", None):
            watch.note("compile", **facts(optimizer, watch))

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
