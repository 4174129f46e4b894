"""Measure the training speed of a network of the assessment in Keras on this process."""

import time
from collections.abc import Callable
from typing import Any

import keras

from hvdlab.data import Batches
from hvdlab.keras.data import dataset
from hvdlab.keras.models import assessment_network, fast_policy

WARM_UP_STEPS = 5


class Stopwatch(keras.callbacks.Callback):
    """Callback that times the steps of `fit` after the first few, and ends `fit` when there are enough.

    Args:
        meet: function that waits for the other processes before the measurement.
        seconds: length of the measurement, unless `steps` is given.
        steps: length of the measurement in steps, or None.

    Attributes:
        ready: time.monotonic() seconds at the end of the first steps.
        done: number of steps that were measured.
        took: seconds that these steps took.
    """

    def __init__(
        self, meet: Callable[[], object], seconds: float | None, steps: int | None
    ) -> None:
        super().__init__()
        self.meet, self.seconds, self.steps = meet, seconds, steps
        self.done = -WARM_UP_STEPS  # the steps of the warm-up are not counted

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count a step, and end `fit` after the last one."""
        self.done += 1
        if self.done == 0:
            self.ready = self.now()
            self.meet()
            self.began = time.monotonic()
        elif self.done > 0:
            took = time.monotonic() - self.began
            if self.done >= self.steps if self.steps else took >= self.seconds:
                self.took = self.now() - self.began
                self.model.stop_training = True

    def now(self) -> float:
        """Return time.monotonic() seconds after waiting for the device to finish this step."""
        # A copy of the weights is complete only after the step.
        keras.ops.convert_to_numpy(self.model.trainable_variables[-1])
        return time.monotonic()


def measure(
    batches: Batches,
    meet: Callable[[], object],
    *,
    seconds: float | None = None,
    steps: int | None = None,
    distribute: Callable = lambda optimizer: optimizer,
    policy: str | None = None,
    network: str | None = None,
) -> tuple[float, float]:
    """Train for some seconds or steps; return when the first steps were done, and images/s after them.

    Args:
        batches: what to train on, augmentation included.
        meet: function that waits for the other processes: before the measurement, so that all processes
            measure at the same time, and after it, so that no process leaves its core to those that
            still measure.
        seconds: length of the measurement in seconds. Give this or `steps`.
        steps: length of the measurement in steps. Processes that exchange gradients need it, because all
            of them must make the same number of steps.
        distribute: function optimizer -> optimizer that exchanges gradients. Default: no exchange.
        policy: dtype policy of the network. Default: the result of `fast_policy`.
        network: its name, see `hvdlab.keras.models.assessment_network`, which also has the default.

    Returns:
        (time.monotonic() seconds, images/s of this process).
    """
    model = assessment_network(policy or fast_policy(), network)
    model.compile(
        optimizer=distribute(keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # because XLA, Keras' default on a GPU, cannot compile Horovod's operations
    )
    watch = Stopwatch(meet, seconds, steps)
    model.fit(dataset(batches), steps_per_epoch=10**6, callbacks=[watch], verbose=0)
    meet()
    return watch.ready, watch.done * batches.batch_size / watch.took
