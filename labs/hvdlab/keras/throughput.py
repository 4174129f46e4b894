"""Training speed of a network of the assessment in Keras, on this process, now."""

import time
from collections.abc import Callable

import keras

from hvdlab.data import Batches
from hvdlab.keras.data import dataset
from hvdlab.keras.models import assessment_network, fast_policy

WARM_UP_STEPS = 5


class Stopwatch(keras.callbacks.Callback):
    """Times the steps of `fit` after the first few, and ends it when there are enough."""

    def __init__(self, meet, seconds, steps):
        super().__init__()
        self.meet, self.seconds, self.steps = meet, seconds, steps
        self.done = -WARM_UP_STEPS  # steps, those to warm up not counted

    def on_train_batch_end(self, batch, logs=None):
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
        """Seconds, when the device has made this step: it holds the weights until then."""
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
    """Train for some seconds or steps; as `hvdlab.torch.throughput.measure`.

    Args:
        distribute: optimizer -> optimizer that exchanges gradients.
        policy: dtype policy of the network; the default is the one that `fast_policy` takes.
        network: its name, see `hvdlab.keras.models.assessment_network`. Default: the given one.
    """
    model = assessment_network(policy or fast_policy(), network)
    model.compile(
        optimizer=distribute(keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,  # XLA, which Keras takes on a GPU, cannot compile Horovod's operations
    )
    watch = Stopwatch(meet, seconds, steps)
    model.fit(dataset(batches), steps_per_epoch=10**6, callbacks=[watch], verbose=0)
    meet()
    return watch.ready, watch.done * batches.batch_size / watch.took
