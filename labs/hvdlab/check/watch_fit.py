"""What `model.fit` does: cut short, and each of its steps noted."""

import functools
import inspect
import os
import sys

import numpy as np

from hvdlab.check.events import EPOCHS, Loop
from hvdlab.check.keras_facts import array, facts, statistics


def fitting(keras, watch) -> None:
    """Cut `fit` short, and add a callback that notes its steps."""
    fit = keras.Model.fit
    signature = inspect.signature(fit)

    class Steps(keras.callbacks.Callback):
        def __init__(self, line, length):
            super().__init__()
            self.line, self.length, self.began = line, length, False

        def on_epoch_begin(self, epoch, logs=None):
            self.loop = Loop(self.line)
            watch.running = [*watch.running, self.loop]

        def on_train_batch_begin(self, batch, logs=None):
            self.loop.iteration += 1
            watch.waits.append(("a training step", self.line, watch.clock()))

        def on_train_batch_end(self, batch, logs=None):
            watch.waits.pop()
            model = self.model
            watch.loss = (logs or {}).get("loss") if batch == 0 else None  # later: a running mean
            norms = [_norm(array(v)) for v in model.trainable_variables]
            watch.step(
                may_end=False,
                **facts(model.optimizer, watch),
                weights=norms,
                statistics=statistics(model) if watch.looks_at_statistics() else None,
            )
            if not self.began:
                self.began = True
                watch.note("loop", self.line, length=self.length, made=None, nested=False)

        def on_epoch_end(self, epoch, logs=None):
            watch.running = [loop for loop in watch.running if loop is not self.loop]
            steps = self.loop.iteration
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
        _note_devices(watch)
        watch.fitting = True
        try:
            return fit(*bound.args, **bound.kwargs)
        finally:
            watch.fitting = False

    keras.Model.fit = noting_fit


def _norm(weights) -> float:
    flat = weights.ravel()
    if flat.dtype.itemsize < 4:  # float16, bfloat16
        flat = flat.astype(np.float32)
    return float(np.dot(flat, flat)) ** 0.5


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
        return -(-int(data.shape[0]) // int(given["batch_size"] or 32))
    try:
        return len(data)
    except TypeError:
        return None
