"""What a script does with Keras 3 or legacy Keras: compile, fit and its batches, custom loops, files."""

import functools
import inspect
import sys

from hvdlab.check.fingerprints import SAMPLE
from hvdlab.check.hooks import keras_fit
from hvdlab.check.hooks.horovod import remember_line
from hvdlab.check.hooks.keras_compat import facts, norm


def watch(keras, watch) -> None:
    """Wrap Keras: the module `keras` (3) or `tf_keras`."""
    optimizers(keras, watch)
    compiling(keras, watch)
    keras_fit.fitting(keras, watch)
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

    legacy = keras.__name__ == "tf_keras"
    name = "apply_gradients" if legacy else "apply"
    apply = getattr(base, name)
    signature = inspect.signature(apply)
    first = list(signature.parameters)[1]

    @functools.wraps(apply)
    def noting_apply(self, *arguments, **options):
        given = signature.bind(self, *arguments, **options)
        given.arguments[first] = grads = list(given.arguments[first])  # it may be a zip
        result = apply(*given.args, **given.kwargs)
        if not watch.fitting and not watch.wrapping:
            variables = [v for _, v in grads] if legacy else self._trainable_variables
            _step_in_a_loop_of_ones_own(self, variables, watch)
        return result

    setattr(base, name, noting_apply)


def _step_in_a_loop_of_ones_own(optimizer, variables, watch):
    """Note a step now, or put the note into the graph that is being made of it."""
    tf = sys.modules.get("tensorflow")

    eager = tf is None or tf.executing_eagerly()

    def note(*norms):
        watch.step(may_end=eager, **facts(optimizer, watch), weights=list(map(float, norms)))

    if eager:
        note(*map(norm, variables))
        return
    variables = [getattr(v, "value", v) if hasattr(v, "_value") else v for v in variables]
    squares = [tf.reduce_sum(tf.square(tf.cast(v, tf.float64))) for v in variables]
    tf.py_function(note, [tf.sqrt(square) for square in squares], [])


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
    tensors = [part for part in tf.nest.flatten(data) if isinstance(part, tf.Tensor)] if tf else []
    if not tensors or tf.executing_eagerly():
        watch.batch = tensors or data
    elif not _compiled(tf):
        for place, tensor in enumerate(tensors):
            _keep(tf, tensor, place, watch.kept)


def _keep(tf, tensor, place, kept):
    """Let a graph put a sample of a tensor into a variable: to call Python from it costs more."""
    key = place, tensor.dtype
    if key not in kept:
        with tf.init_scope(), tf.device("CPU"):
            kept[key] = tf.Variable(tf.zeros([0], tensor.dtype), trainable=False, shape=[None])
    flat = tf.reshape(tensor, [-1])
    kept[key].assign(flat[:: tf.maximum(1, -(-tf.size(flat) // SAMPLE))])


def _compiled(tf) -> bool:
    """Whether XLA makes the graph: it knows no variable whose shape changes, and no call of Python."""
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def deciding(keras, watch) -> None:
    """Note the metric by which a callback decides to stop, or to lower the rate."""
    for name in "EarlyStopping", "ReduceLROnPlateau":
        cls = getattr(keras.callbacks, name)
        remember_line(cls, watch)
        decide = cls.on_epoch_end

        def on_epoch_end(self, epoch, logs=None, decide=decide):
            line = getattr(self, "_hvdlab_line", None)
            watch.decide(line, f'logs["{self.monitor}"]', (logs or {}).get(self.monitor))
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
