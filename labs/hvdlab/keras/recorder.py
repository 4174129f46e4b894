"""Leaves what the grader and the plots read: each rank's weights after every epoch."""

import keras
import numpy as np

from hvdlab.assessment_networks import given_network, network_weights
from hvdlab.data import Batches
from hvdlab.keras.models import to_arrays
from hvdlab.record import RunRecord, launched_rank


class Recorder(keras.callbacks.Callback):
    """A callback that writes this rank's weights, and which examples it read, once an epoch.

        model.fit(dataset(batches), steps_per_epoch=len(batches),
                  callbacks=[..., Recorder(batches)])

    Every rank has one, last in its list of callbacks; the files go to `$HVDLAB_RUN_DIR` (default
    `./runs/<time>`), see `hvdlab.record`. Weights of a model that is not the given network (see
    `hvdlab.keras.models.assessment_network`) go under the paths that Keras gives them, such as
    "sequential/dense/kernel".

    Args:
        batches: the `Batches` that this rank trains on.
        folder: another folder for the run.
    """

    def __init__(self, batches: Batches, folder=None):
        super().__init__()
        self.batches = batches
        self.record = RunRecord(folder)

    def on_train_begin(self, logs=None) -> None:
        if launched_rank()[1] > 1:
            # Imported here: a script on one process needs no Horovod.
            from hvdlab.keras.horovod import warn_if_not_averaging

            warn_if_not_averaging(self.model.optimizer)

    def on_epoch_end(self, epoch: int, logs=None) -> None:
        read = self.batches.examples_read(epoch)
        arrays = _arrays(self.model)
        # A metric may be an array, as F1Score with one number a class: a record's values are numbers.
        said = {n: float(value) for n, value in (logs or {}).items() if np.ndim(value) == 0}
        own = {
            "steps": -(-len(read) // self.batches.batch_size),
            "examples": len(read),
            "batch_size": self.batches.batch_size,
        }
        self.record.write(
            epoch, lambda file: np.savez(file, examples_read=read, **arrays), **said | own
        )


def _arrays(model):
    network = given_network()
    layers = {name.rpartition(".")[0] for name in network_weights(network)}
    if layers <= {layer.name for layer in model.layers}:
        return to_arrays(model, network)
    return {v.path: keras.ops.convert_to_numpy(v.value) for v in model.weights}
