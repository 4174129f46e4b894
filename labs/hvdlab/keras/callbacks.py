"""Horovod's Keras callbacks for Keras 3, as `hvd.callbacks` of `hvdlab.keras.horovod`.

Every callback first refuses Horovod's own optimizer wrapper, which never averages in Keras 3, and
turns XLA off, which cannot compile Horovod's operations (`jit_compile="auto"` turns it on where
there is a GPU). On PyTorch `jit_compile=True` works: `torch.compile` steps around them.

Source: horovod/_keras/callbacks.py of Horovod 0.28.1; same names, arguments and learning rates.
"""

import math

import keras

import hvdlab.keras.horovod as hvd
from hvdlab.keras.distributed_optimizer import backend
from hvdlab.keras.schedules import velocities


class _HorovodCallback(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        hvd.warn_if_not_averaging(self.model.optimizer)
        xla = keras.backend.backend() == "tensorflow" and self.model.jit_compile
        if hvd.size() > 1 and xla:
            self.model.jit_compile = False
            # fit() made the train function before it called us, but has not traced it yet.
            self.model.make_train_function(force=True)
            if hvd.rank() == 0:
                print("XLA cannot compile Horovod's operations: continuing with jit_compile=False.")


class BroadcastGlobalVariablesCallback(_HorovodCallback):
    """Start every rank from the model weights and the optimizer state of one rank.

    The broadcast happens when training begins. A model without a known input shape may have no
    weights yet at that time: its broadcast follows its first batch, and that batch's gradients came
    from unequal weights. Optimizer state is all of it: momentum, iterations, learning rate, loss
    scale, accumulated gradients. Seeds of dropout and shuffling are left alone: ranks should draw
    different numbers.

    Args:
        root_rank: the rank that sends.
        device: accepted for compatibility. Weights are always sent through host memory.
        local_variables: Keras variables, or those of the backend, that keep each rank's own value.
            Default: none.
    """

    def __init__(self, root_rank, device="", local_variables=None):
        super().__init__()
        self.root_rank = root_rank
        self.local_variables = {id(v) for v in backend.native(local_variables or [])}
        self.broadcast_done = False

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.broadcast_done = False
        if self.model.built:
            self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self):
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables = backend.native(self.model.weights + optimizer.variables)
        hvd.broadcast_variables(
            [v for v in variables if id(v) not in self.local_variables], self.root_rank
        )
        self.broadcast_done = True


class MetricAverageCallback(_HorovodCallback):
    """Replace the epoch's metrics, validation included, by those over the examples of all ranks.

    Every example counts once, also where ranks hold unequal numbers of them: see
    `hvd.average_metrics`. Other logs, such as those of a `train_step` of your own, become their mean
    over ranks. Put it before callbacks that read metrics (ReduceLROnPlateau, EarlyStopping,
    ModelCheckpoint, TensorBoard), which then decide the same on all ranks. What `evaluate` returns
    is still this rank's: call `hvd.average_metrics(model)` after it.

    Args:
        device: accepted for compatibility. Metrics are always sent through host memory.
    """

    def __init__(self, device=""):
        super().__init__()
        self._own = None  # this rank's metrics in this epoch, by the name in the logs
        self._all = None  # those over the examples of all ranks

    def on_epoch_begin(self, epoch, logs=None):
        self._own, self._all = {}, {}

    def on_test_begin(self, logs=None):
        if self._own == {}:  # in fit(), and evaluate() resets the metrics in a moment
            self._collect("")

    def on_test_end(self, logs=None):
        if self._own:
            self._collect("val_")

    def on_epoch_end(self, epoch, logs=None):
        if not self._own:
            self._collect("")
        names = sorted(name for name, value in (logs or {}).items() if isinstance(value, float))
        if names:
            is_metric = [float(self._own.get(name) == logs[name]) for name in names]
            means = hvd.allreduce([*(logs[name] for name in names), *is_metric], name="logs")
            means = keras.ops.convert_to_numpy(means).reshape(2, -1).tolist()
            on_all = 1 - 0.5 / hvd.size()  # the mean of ones is not always exactly one
            for name, mean, is_metric in zip(names, *means, strict=True):
                logs[name] = self._all[name] if is_metric > on_all else mean
        for name in (logs or {}).keys() & self._all.keys() - set(names):  # arrays: F1 of each class
            logs[name] = self._all[name]
        self._own = None

    def _collect(self, prefix):
        own, of_all = hvd.local_metrics(self.model), hvd.average_metrics(self.model)
        self._own.update({prefix + name: value for name, value in own.items()})
        self._all.update({prefix + name: value for name, value in of_all.items()})


class LearningRateScheduleCallback(_HorovodCallback):
    """Set the learning rate to `initial_lr * multiplier(epoch)` in epochs `start_epoch` to before
    `end_epoch`.

    Args:
        initial_lr: learning rate that the multiplier scales.
        multiplier: function of the epoch, or a constant c for c ** (epoch - start_epoch).
        start_epoch: first epoch to act in. Default 0.
        end_epoch: first epoch not to act in. Default None: never stop.
        staircase: True (default): once an epoch, and the multiplier receives an int. False: every
            batch, and it receives epoch + batch / steps_per_epoch.
        momentum_correction: when the rate changes, scale the velocity of SGD and RMSprop by
            new / old rate, since their velocity contains the old rate (Goyal et al., Accurate,
            Large Minibatch SGD, 2017, section 3, arXiv:1706.02677). Horovod scales the coefficient
            for one step instead, which Keras 3 compiles in as a constant; for plain momentum the
            weights are the same. Default True.
        steps_per_epoch: batches an epoch. Default: asked from `fit`.

    Raises:
        ValueError: no `initial_lr`, or `fit` does not know the steps that `staircase=False` needs.
    """

    def __init__(
        self,
        initial_lr,
        multiplier,
        start_epoch=0,
        end_epoch=None,
        staircase=True,
        momentum_correction=True,
        steps_per_epoch=None,
    ):
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

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self.steps_per_epoch = self.given_steps or self.params.get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__} needs steps_per_epoch, because fit() does not know the "
                "length of its data. Received: steps_per_epoch=None"
            )

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        is_over = self.end_epoch is not None and self.epoch >= self.end_epoch
        if self.epoch < self.start_epoch or is_over:
            return
        if not self.staircase:
            self._set_learning_rate(self.multiplier(self.epoch + batch / self.steps_per_epoch))
        elif batch == 0:
            self._set_learning_rate(self.multiplier(self.epoch))

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["lr"] = self._learning_rate()

    def _learning_rate(self):
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set_learning_rate(self, multiplier):
        old, new = self._learning_rate(), self.initial_lr * multiplier
        self.model.optimizer.learning_rate = new
        if self.momentum_correction and old > 0 and new != old:
            for velocity in velocities(self.model.optimizer):
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate batch by batch from initial_lr / hvd.size() to initial_lr.

        lr(epoch) = initial_lr / size * (1 + epoch * (size - 1) / warmup_epochs)

    where epoch counts batches too and is taken at a batch's end: the last batch of the warmup gets
    initial_lr, and so does each after it. Where `compile` got steps_per_execution, so many batches
    share the rate of their first one.

    Args:
        initial_lr: the rate to reach, usually the one-process rate x hvd.size().
        warmup_epochs: length of the warmup, such as 5 (default) or 0.5.
        momentum_correction, steps_per_epoch: as in `LearningRateScheduleCallback`.
        verbose: 1 prints one line on rank 0 when the warmup is over. Default 0.
    """

    def __init__(
        self,
        initial_lr,
        warmup_epochs=5,
        momentum_correction=True,
        steps_per_epoch=None,
        verbose=0,
    ):
        def multiplier(epoch):
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

    def on_epoch_end(self, epoch, logs=None):
        is_last = epoch == math.ceil(self.end_epoch) - 1
        if is_last and self.model.steps_per_execution > 1:  # its last batch began with others
            self._set_learning_rate(1.0)
        super().on_epoch_end(epoch, logs)
        if self.verbose and is_last and hvd.rank() == 0:
            rate = self._learning_rate()
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def __getattr__(name):
    if name == "BestModelCheckpoint":
        raise AttributeError(
            "hvd.callbacks.BestModelCheckpoint is not offered: use keras.callbacks.ModelCheckpoint("
            "path, save_best_only=True) on rank 0, after MetricAverageCallback."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
