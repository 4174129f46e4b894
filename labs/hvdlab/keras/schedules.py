"""Schedules of `hvdlab.schedules` for Keras optimizers: `Schedule` is a table, `ScheduleCallback` a callback.

A growing batch needs no class. Make new `Batches` and call `fit` once per epoch:

    plan = batch_growth(epochs, [60, 120, 160], 5, batch_size=128, max_batch_size=5120, ...)
    for epoch, (batch_size, rate) in enumerate(plan):
        batches = Batches(images, labels, batch_size // hvd.size(), rank=hvd.rank(), size=hvd.size())
        model.optimizer.learning_rate = rate
        model.fit(
            batches.epoch(epoch),
            steps_per_epoch=len(batches),
            shuffle=False,  # the batches are shuffled already, and Keras would warn
            initial_epoch=epoch,
            epochs=epoch + 1,
        )
"""

from collections.abc import Callable
from typing import Any

import keras

from hvdlab.keras.optimizers import LARS


@keras.saving.register_keras_serializable(package="hvdlab")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rates of a run as a table that the compiled train step reads.

        schedule = gradual_warmup(constant(0.8), 500, start=0.1)
        optimizer = keras.optimizers.SGD(Schedule(schedule, total_steps=10_000), momentum=0.9)

    A table is needed because a compiled train step has no Python number to pass to a function. The table
    takes 4 bytes per step. A saved model contains the table and not the function.

    If gradients are accumulated over k batches (`backward_passes_per_step`), Keras passes the number of
    batches and not the number of updates. Then pass `lambda batch: schedule(batch // k)`, or use
    `ScheduleCallback`, which counts updates.

    Args:
        schedule: function step -> learning rate, for the steps 0, 1, ..., total_steps - 1.
        total_steps: length of the table. Later steps get its last learning rate.

    Raises:
        ValueError: `schedule` is not a function, or `total_steps` is not a whole number of at least 1.
    """

    def __init__(self, schedule: Callable[[int], float], total_steps: int) -> None:
        _check_function(schedule)
        if not isinstance(total_steps, int) or total_steps < 1:
            raise ValueError(
                "total_steps must be a whole number of at least 1. "
                f"Received: total_steps={total_steps!r}"
            )
        self.rates = [float(schedule(step)) for step in range(total_steps)]

    def __call__(self, step: Any) -> Any:
        """Return the learning rate of a step, as a scalar tensor of the backend.

        Args:
            step: number of the step, from 0: an int, a tensor or a Keras variable.
        """
        table = keras.ops.array(self.rates, dtype=keras.config.floatx())
        return keras.ops.take(table, keras.ops.minimum(step, len(self.rates) - 1))

    def get_config(self) -> dict[str, list[float]]:
        """Return the table, from which `from_config` makes an equal schedule."""
        return {"rates": self.rates}

    @classmethod
    def from_config(cls, config: dict[str, list[float]]) -> "Schedule":
        """Return the schedule whose `get_config` returned `config`.

        Args:
            config: {"rates": learning rate of each step}.
        """
        return cls(config["rates"].__getitem__, len(config["rates"]))


class ScheduleCallback(keras.callbacks.Callback):
    """Set the learning rate before every batch to the value of a function of the step.

        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.fit(..., callbacks=[ScheduleCallback(gradual_warmup(constant(0.8), 500, start=0.1))])

    The step is the optimizer's count of updates. It continues from one `fit` to the next and is saved
    with the model. In contrast to `Schedule`, this callback can correct momentum. It does not need
    Horovod.

    Args:
        schedule: function step -> learning rate.
        momentum_correction: whether the velocity of SGD, of RMSprop and of LARS in its paper form is
            scaled by new / old learning rate when the learning rate changes, because that velocity
            contains the old one (Goyal et al., Accurate, Large Minibatch SGD, 2017, section 3,
            arXiv:1706.02677). A learning rate of 0 sets the velocity to 0. Default False.

    Raises:
        ValueError: `schedule` is not a function.
    """

    def __init__(self, schedule: Callable[[int], float], momentum_correction: bool = False) -> None:
        super().__init__()
        _check_function(schedule)
        self.schedule = schedule
        self.momentum_correction = momentum_correction

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the learning rate of the next update.

        Args:
            batch: number of the batch in its epoch; not used.
            logs: metrics so far; not used.
        """
        optimizer = self.model.optimizer
        old = _number(optimizer.learning_rate)
        optimizer.learning_rate = self.schedule(int(_number(optimizer.iterations)))
        if self.momentum_correction:
            # Read back, because the variable rounds: an unchanged rate must leave the velocity alone.
            scale_velocities(optimizer, old, _number(optimizer.learning_rate))


def scale_velocities(optimizer: keras.optimizers.Optimizer, old: float, new: float) -> None:
    """Scale the variables of an optimizer that hold sums of learning rate x gradient by new / old.

    Args:
        optimizer: any optimizer, also a `LossScaleOptimizer`. Only SGD, RMSprop and LARS in its paper
            form have such variables; the state of other optimizers is unchanged.
        old: the learning rate until now. If it is 0, nothing changes.
        new: the learning rate from now on.
    """
    if old > 0 and new != old:
        for velocity in _velocities(optimizer):
            velocity.assign(velocity * (new / old))


def _velocities(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(optimizer, keras.optimizers.SGD):
        return getattr(optimizer, "momentums", [])
    if isinstance(optimizer, keras.optimizers.RMSprop):
        return getattr(optimizer, "_momentums", [])
    if isinstance(optimizer, LARS) and optimizer.momentum_form == "paper":
        return getattr(optimizer, "_velocities", [])
    return []


def _number(variable: Any) -> float:
    return float(keras.ops.convert_to_numpy(variable))


def _check_function(schedule: Any) -> None:
    if not callable(schedule):
        raise ValueError(
            f"schedule must be a function: step -> learning rate. Received: schedule={schedule!r}"
        )
