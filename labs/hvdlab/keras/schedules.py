"""Schedules of `hvdlab.schedules` for Keras optimizers: as a table, or set by a callback.

A batch that grows needs no class: make new `Batches` and call `fit` each epoch.

    plan = batch_growth(epochs, [60, 120, 160], 5, batch_size=128, max_batch_size=5120, ...)
    for epoch, (batch_size, rate) in enumerate(plan):
        batches = Batches(images, labels, batch_size // hvd.size(), rank=hvd.rank(), size=hvd.size())
        model.optimizer.learning_rate = rate
        model.fit(
            batches.epoch(epoch),
            steps_per_epoch=len(batches),
            shuffle=False,  # they are shuffled; Keras warns else
            initial_epoch=epoch,
            epochs=epoch + 1,
        )
"""

import keras

from hvdlab.keras.optimizers import LARS


@keras.saving.register_keras_serializable(package="hvdlab")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """The rates of a run, written down in a table that the compiled train step reads.

        schedule = gradual_warmup(constant(0.8), 500, start=0.1)
        optimizer = keras.optimizers.SGD(Schedule(schedule, total_steps=10_000), momentum=0.9)

    Inside a compiled train step there is no Python number to call a function with. It costs 4 bytes
    a step. What is saved with a model is the table, not the function. Where gradients are accumulated
    over k batches (`backward_passes_per_step`), Keras gives it the number of batches and not of
    updates: pass `lambda batch: schedule(batch // k)`, or use `ScheduleCallback`, which counts updates.

    Args:
        schedule: function step -> learning rate.
        total_steps: length of the table. Later steps get its last rate.

    Raises:
        ValueError: `schedule` is no function, or `total_steps` no whole number of at least 1.
    """

    def __init__(self, schedule, total_steps):
        _check_function(schedule)
        if not isinstance(total_steps, int) or total_steps < 1:
            raise ValueError(
                "total_steps must be a whole number of at least 1. "
                f"Received: total_steps={total_steps!r}"
            )
        self.rates = [float(schedule(step)) for step in range(total_steps)]

    def __call__(self, step):
        table = keras.ops.array(self.rates, dtype=keras.config.floatx())
        return keras.ops.take(table, keras.ops.minimum(step, len(self.rates) - 1))

    def get_config(self):
        return {"rates": self.rates}

    @classmethod
    def from_config(cls, config):
        return cls(config["rates"].__getitem__, len(config["rates"]))


class ScheduleCallback(keras.callbacks.Callback):
    """Set the learning rate before every batch to what a function of the step returns.

        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.fit(..., callbacks=[ScheduleCallback(gradual_warmup(constant(0.8), 500, start=0.1))])

    The step is the optimizer's count of updates, which goes on from one `fit` to the next and is
    saved with the model. Unlike `Schedule` this can correct momentum; Horovod is not needed.

    Args:
        schedule: function step -> learning rate.
        momentum_correction: when the rate changes, scale the velocity of SGD, RMSprop and LARS in
            its paper form by new / old rate, since that velocity contains the old rate (Goyal et
            al., Accurate, Large Minibatch SGD, 2017, section 3, arXiv:1706.02677). A rate of 0
            forgets the velocity. Default False.

    Raises:
        ValueError: `schedule` is no function.
    """

    def __init__(self, schedule, momentum_correction=False):
        super().__init__()
        _check_function(schedule)
        self.schedule = schedule
        self.momentum_correction = momentum_correction

    def on_train_batch_begin(self, batch, logs=None):
        optimizer = self.model.optimizer
        old = _number(optimizer.learning_rate)
        optimizer.learning_rate = self.schedule(int(_number(optimizer.iterations)))
        # Read back, because the variable rounds: an unchanged rate must leave the velocity alone.
        new = _number(optimizer.learning_rate)
        if self.momentum_correction and old > 0 and new != old:
            for velocity in velocities(optimizer):
                velocity.assign(velocity * (new / old))


def velocities(optimizer):
    """Return the variables of an optimizer that hold sums of learning rate x gradient."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(optimizer, keras.optimizers.SGD):
        return getattr(optimizer, "momentums", [])
    if isinstance(optimizer, keras.optimizers.RMSprop):
        return getattr(optimizer, "_momentums", [])
    if isinstance(optimizer, LARS) and optimizer.momentum_form == "paper":
        return getattr(optimizer, "_velocities", [])
    return []


def _number(variable) -> float:
    return float(keras.ops.convert_to_numpy(variable))


def _check_function(schedule):
    if not callable(schedule):
        raise ValueError(
            f"schedule must be a function: step -> learning rate. Received: schedule={schedule!r}"
        )
