"""Horovod's Keras callbacks for Keras 3, which a script finds as `hvd.callbacks`.

When training begins, each callback does two things before its own work:

* It raises an error if Horovod's own module wrapped the optimizer, which never averages in Keras 3.
* It turns XLA off on TensorFlow, because XLA cannot compile Horovod's operations. (`jit_compile="auto"`
  turns XLA on if there is a GPU.) On PyTorch `jit_compile=True` works, because `torch.compile` leaves
  Horovod's operations out.

Source: horovod/_keras/callbacks.py of Horovod 0.28.1; same names, arguments and learning rates.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

from hvdlab.keras import collectives
from hvdlab.keras.collectives import backend, hvd
from hvdlab.keras.distributed_optimizer import warn_if_not_averaging
from hvdlab.keras.schedules import scale_velocities

Logs = dict[str, Any] | None  # what Keras passes to a callback: metrics by name


class _HorovodCallback(keras.callbacks.Callback):
    def on_train_begin(self, logs: Logs = None) -> None:
        warn_if_not_averaging(self.model.optimizer)
        xla = keras.backend.backend() == "tensorflow" and self.model.jit_compile
        if hvd.size() > 1 and xla:
            self.model.jit_compile = False
            # fit() made the train function before it called this method, but has not traced it yet.
            self.model.make_train_function(force=True)
            if hvd.rank() == 0:
                print("XLA cannot compile Horovod's operations: continuing with jit_compile=False.")


class BroadcastGlobalVariablesCallback(_HorovodCallback):
    """Start every rank from the model weights and the optimizer state of one rank.

    The broadcast happens when training begins. A model without a known input shape may have no weights
    at that time. Its broadcast follows its first batch, so the gradients of that batch came from
    unequal weights.

    All of the optimizer state is sent: momentum, iterations, learning rate, loss scale and accumulated
    gradients. Seeds of dropout and shuffling are not sent, because ranks should draw different numbers.

    Args:
        root_rank: the rank that sends.
        device: accepted for compatibility; it has no effect. Weights are always sent through host
            memory.
        local_variables: Keras variables, or variables of the backend, that keep each rank's own value.
            Default: none.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Sequence[Any] | None = None
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.local_variables = {id(v) for v in backend.native(local_variables or [])}
        self.broadcast_done = False

    def on_train_begin(self, logs: Logs = None) -> None:
        super().on_train_begin(logs)
        self.broadcast_done = False
        if self.model.built:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables = backend.native(self.model.weights + optimizer.variables)
        collectives.broadcast_variables(
            [v for v in variables if id(v) not in self.local_variables], self.root_rank
        )
        self.broadcast_done = True


class MetricAverageCallback(_HorovodCallback):
    """Replace the metrics of an epoch, validation included, by the metrics over all ranks' examples.

    Every example counts once, even if the ranks have different numbers of examples: see
    `hvd.average_metrics`. Other logs, such as those of your own `train_step`, become their mean over
    ranks.

    Put this callback before callbacks that read metrics (ReduceLROnPlateau, EarlyStopping,
    ModelCheckpoint, TensorBoard), so that they decide the same on all ranks. `evaluate` still returns
    the metrics of this rank: call `hvd.average_metrics(model)` after it.

    Args:
        device: accepted for compatibility; it has no effect. Metrics are always sent through host
            memory.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self._own: dict[str, Any] | None = (
            None  # this rank's metrics in this epoch, by name in logs
        )
        self._all: dict[str, Any] | None = None  # the metrics over the examples of all ranks

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._own, self._all = {}, {}

    def on_test_begin(self, logs: Logs = None) -> None:
        if self._own == {}:  # inside fit(), and evaluate() is about to reset the metrics
            self._collect("")

    def on_test_end(self, logs: Logs = None) -> None:
        if self._own:
            self._collect("val_")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if not self._own:
            self._collect("")
        names = sorted(name for name, value in (logs or {}).items() if isinstance(value, float))
        if names:
            is_metric = [float(self._own.get(name) == logs[name]) for name in names]
            values = [*(logs[name] for name in names), *is_metric]
            means = collectives.allreduce(values, name="logs")
            means = keras.ops.convert_to_numpy(means).reshape(2, -1).tolist()
            on_all = 1 - 0.5 / hvd.size()  # because the mean of ones is not always exactly one
            for name, mean, is_metric in zip(names, *means, strict=True):
                logs[name] = self._all[name] if is_metric > on_all else mean
        # Arrays, for example the F1 score of each class.
        for name in (logs or {}).keys() & self._all.keys() - set(names):
            logs[name] = self._all[name]
        self._own = None

    def _collect(self, prefix: str) -> None:
        own = collectives.local_metrics(self.model)
        of_all = collectives.average_metrics(self.model)
        self._own.update({prefix + name: value for name, value in own.items()})
        self._all.update({prefix + name: value for name, value in of_all.items()})


class LearningRateScheduleCallback(_HorovodCallback):
    """Set the learning rate to `initial_lr * multiplier(epoch)` from one epoch to another.

    The callback acts in every epoch with start_epoch <= epoch < end_epoch, counted from 0.

    Args:
        initial_lr: learning rate that the multiplier scales.
        multiplier: function of the epoch, or a constant c for c ** (epoch - start_epoch).
        start_epoch: first epoch in which the callback acts. Default 0.
        end_epoch: first epoch in which it no longer acts. Default None: it never stops.
        staircase: True (default): the learning rate changes once per epoch, and the multiplier receives
            an int. False: it changes with every batch, and the multiplier receives
            epoch + batch / steps_per_epoch.
        momentum_correction: whether the velocity of SGD and RMSprop is scaled by new / old learning
            rate when the learning rate changes, because the velocity contains the old one (Goyal et al.,
            Accurate, Large Minibatch SGD, 2017, section 3, arXiv:1706.02677). Horovod instead scales
            the momentum coefficient for one step, but Keras 3 compiles that coefficient as a constant.
            For plain momentum the resulting weights are the same. Default True.
        steps_per_epoch: number of batches of an epoch. Default None: `fit` reports it.

    Raises:
        ValueError: `initial_lr` is None; when training begins: `fit` does not know the number of steps
            that `staircase=False` needs.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Callable[[float], float] | float,
        start_epoch: int = 0,
        end_epoch: float | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is required. Received: initial_lr=None")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = self.given_steps = steps_per_epoch
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: Logs = None) -> None:
        super().on_train_begin(logs)
        self.steps_per_epoch = self.given_steps or self.params.get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__} needs steps_per_epoch, because fit() does not know the "
                "length of its data. Received: steps_per_epoch=None"
            )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        is_over = self.end_epoch is not None and self.epoch >= self.end_epoch
        if self.epoch < self.start_epoch or is_over:
            return
        if not self.staircase:
            self._set_learning_rate(self.multiplier(self.epoch + batch / self.steps_per_epoch))
        elif batch == 0:
            self._set_learning_rate(self.multiplier(self.epoch))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if logs is not None:
            logs["lr"] = self._learning_rate()

    def _learning_rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set_learning_rate(self, multiplier: float) -> None:
        old, new = self._learning_rate(), self.initial_lr * multiplier
        self.model.optimizer.learning_rate = new
        if self.momentum_correction:
            scale_velocities(self.model.optimizer, old, new)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate batch by batch from initial_lr / hvd.size() to initial_lr.

        lr(epoch) = initial_lr / size * (1 + epoch * (size - 1) / warmup_epochs)

    Here `epoch` includes the fraction of the epoch at the end of the batch. So the last batch of the
    warmup gets initial_lr, and so do all batches after it. If `compile` got steps_per_execution, that
    many batches share the learning rate of their first one.

    Args:
        initial_lr: learning rate at the end of the warmup, usually the learning rate for a single
            process times hvd.size().
        warmup_epochs: length of the warmup in epochs, for example 0.5. Default 5.
        momentum_correction: as in `LearningRateScheduleCallback`. Default True.
        steps_per_epoch: as in `LearningRateScheduleCallback`. Default None.
        verbose: 1 prints one line on rank 0 when the warmup is over. Default 0.

    Raises:
        ValueError: `initial_lr` is None; when training begins: `fit` does not know the number of steps
            of an epoch.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            epoch = min(epoch + 1 / self.steps_per_epoch, warmup_epochs)
            return (1 + epoch * (hvd.size() - 1) / warmup_epochs) / hvd.size()

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        is_last = epoch == math.ceil(self.end_epoch) - 1
        if is_last and self.model.steps_per_execution > 1:
            # The last batch shared the learning rate of the batches that were executed with it.
            self._set_learning_rate(1.0)
        super().on_epoch_end(epoch, logs)
        if self.verbose and is_last and hvd.rank() == 0:
            rate = self._learning_rate()
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def __getattr__(name: str) -> Any:
    if name == "BestModelCheckpoint":
        raise AttributeError(
            "hvd.callbacks.BestModelCheckpoint is not offered: use keras.callbacks.ModelCheckpoint("
            "path, save_best_only=True) on rank 0, after MetricAverageCallback."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
