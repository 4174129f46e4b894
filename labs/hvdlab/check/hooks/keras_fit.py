"""What `model.fit` does: cut short, and each of its steps noted."""

import functools
import inspect
import os
import sys

from hvdlab.check.event_log import EPOCHS, Loop
from hvdlab.check.hooks.keras_compat import facts, norm, statistics


def fitting(keras, watch) -> None:
    """Cut `fit` short, and add a callback that notes its steps."""
    fit = keras.Model.fit
    signature = inspect.signature(fit)

    class Steps(keras.callbacks.Callback):
        def __init__(self, line, length):
            super().__init__()
            self.line, self.length = line, length

        def on_epoch_begin(self, epoch, logs=None):
            batches = None if self.length is None else range(self.length)
            self.loop = Loop(watch, self.line, batches).__enter__()
            self.loop.left = "at its end"

        def on_train_batch_begin(self, batch, logs=None):
            self.loop.iteration += 1
            watch.waits.append(("a training step", self.line, watch.clock()))

        def on_train_batch_end(self, batch, logs=None):
            watch.waits.pop()
            model = self.model
            watch.batch = list(watch.kept.values()) or watch.batch
            watch.loss = (logs or {}).get("loss") if batch == 0 else None  # later: a running mean
            watch.step(
                may_end=False,
                **facts(model.optimizer, watch),
                weights=[norm(v) for v in model.trainable_variables],
                statistics=statistics(model) if watch.looks_at_statistics() else None,
            )
            self.loop.ended()

        def on_epoch_end(self, epoch, logs=None):
            watch.waits.clear()  # a step that began when the data had run out has no end
            self.loop.iteration = self.loop.trained
            self.loop.__exit__()

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
        callbacks = given["callbacks"] or []
        if isinstance(callbacks, keras.callbacks.Callback):
            callbacks = [callbacks]
        if isinstance(callbacks, list | tuple):
            given["callbacks"] = [*callbacks, Steps(line, length)]
        watch.note("fit", line, length=length)
        _note_devices(watch)
        watch.fitting = True
        try:
            return fit(*bound.args, **bound.kwargs)
        finally:
            watch.fitting = False

    keras.Model.fit = noting_fit


def _note_devices(watch):
    if tf := sys.modules.get("tensorflow"):
        gpus = tf.config.get_visible_devices("GPU")
        if gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            watch.note("devices", count=len(gpus), visible=visible)


def _steps(given) -> int | None:
    """Batches of an epoch, as `fit` would count them; None where only the data knows."""
    if given["steps_per_epoch"] is not None:
        return int(given["steps_per_epoch"])
    data = given["x"]
    while isinstance(data, dict | list | tuple) and data:  # a model with several inputs
        data = next(iter(data.values() if isinstance(data, dict) else data))
    if hasattr(data, "cardinality"):  # a tf.data.Dataset; -1 and -2 are endless and unknown
        batches = int(data.cardinality())
        return batches if batches >= 0 else None
    if hasattr(data, "shape"):
        rows = int(data.shape[0] * (1.0 - (given["validation_split"] or 0.0)))
        return -(-rows // int(given["batch_size"] or 32))
    try:
        return len(data)
    except TypeError:
        return None
