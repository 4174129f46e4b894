"""Calibration run of the grader: trains the assessment network alone and prints its rate."""

import json
import time

import keras

import hvdlab.keras.horovod as hvd
from hvdlab.data import Batches, load_cifar10
from hvdlab.keras.data import BatchSequence
from hvdlab.keras.models import AssessmentNet, fast_policy

SECONDS = 8.0
BATCH_SIZE = 128
WARM_UP_STEPS = 5


class Stopwatch(keras.callbacks.Callback):
    """Times the steps after the first few, and ends the training when the time is over."""

    def on_train_batch_begin(self, step, logs=None):
        if step == WARM_UP_STEPS:
            self.ready = time.monotonic()
            hvd.allreduce(0.0, name="begin together")
            self.began = time.monotonic()

    def on_train_batch_end(self, step, logs=None):
        self.steps, self.seconds = step + 1 - WARM_UP_STEPS, 0.0
        if self.steps > 0:
            self.seconds = time.monotonic() - self.began
        self.model.stop_training = self.seconds > SECONDS


hvd.init()  # only to begin together; nothing is exchanged
data = load_cifar10()
batches = Batches(data.train_images, data.train_labels, BATCH_SIZE, augment=True)
model = AssessmentNet(dtype=fast_policy())
model.compile(
    optimizer=keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
watch = Stopwatch()
model.fit(BatchSequence(batches), callbacks=[watch], verbose=0)
rate = watch.steps * BATCH_SIZE / watch.seconds
print(json.dumps({"ready": watch.ready, "images_per_second": rate}), flush=True)
hvd.allreduce(0.0, name="leave together")  # or one would give its core to those that still measure
