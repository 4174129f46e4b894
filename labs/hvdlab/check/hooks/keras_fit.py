"""`model.fit`, which ends early and writes down each of its steps."""

import functools
import inspect
import os
import sys
from types import ModuleType
from typing import Any

from hvdlab.check.event_log import Watch
from hvdlab.check.fingerprints import content
from hvdlab.check.hooks.keras_compat import facts, norm, statistics
from hvdlab.check.hooks.tensorflow import of_shard
from hvdlab.check.hooks.tensorflow_gradients import as_event
from hvdlab.check.loops import EPOCHS, Loop, counted
from hvdlab.trace import records

DECIDE = (
    "EarlyStopping",
    "ReduceLROnPlateau",
)  # callbacks that every rank needs, besides those of the rate


def fitting(keras: ModuleType, watch: Watch) -> None:
    """Make `fit` end early, and add a callback to it that writes down its steps.

    Args:
        keras: the module `keras` (3) or `tf_keras`.
    """
    fit = keras.Model.fit
    signature = inspect.signature(fit)
    steps_callback = _steps_callback(keras, watch)

    @functools.wraps(fit)
    def noting_fit(self: Any, *arguments: Any, **options: Any) -> Any:
        if watch.fitting:
            return fit(self, *arguments, **options)
        bound = signature.bind(self, *arguments, **options)
        bound.apply_defaults()
        given = bound.arguments
        length, line = _steps(given), watch.line()
        read = None if given["steps_per_epoch"] else content(_first_input(given["x"]))
        epochs = given["epochs"]
        if not watch.totals:
            if length is None or length > watch.limit:
                given["steps_per_epoch"] = watch.limit
            given["epochs"] = min(epochs, given["initial_epoch"] + EPOCHS)
        callbacks = given["callbacks"] or []
        if isinstance(callbacks, keras.callbacks.Callback):
            callbacks = [callbacks]
        if isinstance(callbacks, list | tuple):
            given["callbacks"] = [*callbacks, steps_callback(line, length)]
        watch.note(records.Fit, line, length=length, content=read)
        watch.planned = length and length * (epochs - given["initial_epoch"])
        for callback in callbacks if isinstance(callbacks, list | tuple) else ():
            if (name := type(callback).__name__) in DECIDE or name.startswith("LearningRate"):
                watch.note(
                    records.Callback, getattr(callback, "_hvdlab_line", None) or line, name=name
                )
        _note_devices(watch)
        watch.fitting = True
        try:
            history = fit(*bound.args, **bound.kwargs)
            batches = counted(_first_input(given["x"])) if length is None else None
        finally:
            watch.fitting = False
        watch.note(records.Fitted, line, cut=epochs > given["epochs"])
        if batches:
            watch.note(records.Loop, line, length=batches, made=None, nested=False)
        _note_validation(given["validation_data"], callbacks, line, watch)
        return history

    keras.Model.fit = noting_fit


def _note_validation(data: Any, callbacks: Any, line: int | None, watch: Watch) -> None:
    """Write down that `fit` has evaluated, unless a callback averages the metrics over the ranks."""
    if not isinstance(callbacks, list | tuple):
        return
    averages = any("MetricAverage" in type(each).__name__ for each in callbacks)
    if data is not None and not averages:
        found = {"sharded": of_shard(data), "content": content(_first_input(data))}
        watch.note(records.Evaluate, line, made=None, loops=[], **found)


def _steps_callback(keras: ModuleType, watch: Watch) -> type:
    """Return the class of the callback that writes down the steps of `fit`."""

    class Steps(keras.callbacks.Callback):
        """Writes down the steps of one call of `fit`.

        Args:
            length: batches per epoch, or None.
        """

        def __init__(self, line: int | None, length: int | None) -> None:
            super().__init__()
            self.line, self.length = line, length

        def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
            batches = None if self.length is None else range(self.length)
            self.loop = Loop(watch, self.line, batches).__enter__()
            self.loop.left = "at its end"

        def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
            self.loop.iteration += 1
            model = self.model
            if watch.writes and not facts(model.optimizer)["wrapped"]:
                watch.start = [norm(v) for v in model.trainable_variables]
            watch.waits_in("a training step", self.line)

        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            watch.waits.pop()
            kept = {name: value for (name, _), value in watch.kept.items()}
            if watch.totals and "inputs" in kept:
                watch.batch = [kept.pop("inputs").numpy().reshape(int(kept["rows"][0]), -1)]
            if not watch.writes:
                watch.step(may_end=False)
                self.loop.ended()
                return
            model = self.model
            rows = int(kept.pop("rows")[0]) if "rows" in kept else None
            watch.batch = watch.batch or [*kept.values()]
            watch.loss = (logs or {}).get("loss") if batch == 0 else None  # later: a running mean
            watch.step(
                may_end=False,
                **facts(model.optimizer),
                planned=watch.planned,
                gradient=watch.sketched is not None and as_event(watch.sketched.numpy()),
                taped_at=None,
                **({"rows": rows} if rows else {}),
                weights=[norm(v) for v in model.trainable_variables],
                statistics=statistics(model) if watch.looks_at_statistics() else None,
            )
            self.loop.ended()

        def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
            watch.waits.clear()  # a step that started after the last batch never ends
            if watch.totals:
                watch.totals.epoch(logs or {})
            self.loop.iteration = self.loop.trained
            self.loop.__exit__()

    return Steps


def _note_devices(watch: Watch) -> None:
    """Write down how many GPUs TensorFlow sees, if it sees one."""
    if tf := sys.modules.get("tensorflow"):
        gpus = tf.config.get_visible_devices("GPU")
        if gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            watch.note(records.Devices, count=len(gpus), visible=visible)


def _steps(given: dict[str, Any]) -> int | None:
    """Return the batches per epoch, as `fit` counts them; None where only the data determine them."""
    if given["steps_per_epoch"] is not None:
        return int(given["steps_per_epoch"])
    data = _first_input(given["x"])
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


def _first_input(data: Any) -> Any:
    """Return the data of the first input of a model, which may have several."""
    while isinstance(data, dict | list | tuple) and data:
        data = next(iter(data.values() if isinstance(data, dict) else data))
    return data
