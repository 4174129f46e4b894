"""Record each rank's weights after every epoch, for the grader and the plots."""

from pathlib import Path
from typing import Any

import keras
import numpy as np

from hvdlab.assessment_networks import given_network, network_weights
from hvdlab.data import Batches
from hvdlab.data.epoch_record import EpochRecord
from hvdlab.keras.models import shapes, to_arrays
from hvdlab.record import RunRecord, launched_rank
from hvdlab.recordable import (
    NotRecordable,
    in_grading,
    network_among,
    require_batches,
    require_only_recorder,
)


class Recorder(keras.callbacks.Callback):
    """Callback that writes this rank's weights, and which examples it read, once per epoch.

        model.fit(dataset(batches), steps_per_epoch=len(batches),
                  callbacks=[..., Recorder(batches)])

    Every rank needs one, as the last of its callbacks. The files go to `$HVDLAB_RUN_DIR` (default
    `./runs/<time>`), see `hvdlab.record`. If the model is the network of the assessment (see
    `hvdlab.keras.models.assessment_network`), or contains it, that network is recorded under the grader's
    names. Otherwise the weights are recorded under the paths that Keras gives them, such as
    "sequential/dense/kernel".

    Args:
        batches: the `Batches` that this rank trains on.
        folder: another folder for the run. Default None: see above.

    Raises:
        NotRecordable: `batches` cannot be recorded, see `hvdlab.recordable`. When the callback gets its
            model: the grader requires the network of the assessment, or a model that contains it once.
        RuntimeError: when training on several ranks begins: the optimizer would not average gradients.
    """

    def __init__(self, batches: Batches, folder: str | Path | None = None) -> None:
        super().__init__()
        require_batches(batches)
        self.batches = batches
        self.record = RunRecord(folder)
        require_only_recorder(self, self.record.folder)
        self.epochs = EpochRecord(
            self.record, batches, lambda: _arrays(self.model) if self.model else None
        )

    def set_model(self, model: keras.Model) -> None:
        """Get the model, as `fit` and training loops pass it, and check that it can be recorded."""
        if not isinstance(model, keras.Model):
            raise NotRecordable(
                f"Recorder: the model must be a keras.Model. Received: {type(model).__name__}. With legacy "
                "Keras write the record with hvdlab.record.RunRecord."
            )
        super().set_model(model)
        if in_grading() and model.built:
            _network(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Check that the optimizer averages gradients if there are several ranks."""
        self.epochs.fit_begins()
        if launched_rank()[1] > 1:
            # Imported here, because a script on a single process needs no Horovod.
            from hvdlab.keras.distributed_optimizer import warn_if_not_averaging

            warn_if_not_averaging(self.model.optimizer)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Note that a step is done, for the grader's probe."""
        self.epochs.step_end()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Record the weights, the metrics and the examples of an epoch, counted from 0."""
        # A record holds numbers only. A metric may be an array, such as F1Score with a number per class.
        metrics = {n: float(value) for n, value in (logs or {}).items() if np.ndim(value) == 0}
        self.epochs.epoch_end(epoch, metrics)


def _arrays(model: keras.Model) -> dict[str, np.ndarray]:
    try:
        network = _network(model)
    except NotRecordable:
        if in_grading():
            raise
        return {v.path: keras.ops.convert_to_numpy(v.value) for v in model.weights}
    return to_arrays(network, given_network())


def _network(model: keras.Model) -> keras.Model:
    """Return the network of the assessment in a model that contains it once.

    Raises:
        NotRecordable: it contains another network, or the network more than once.
    """
    wanted = {name.rpartition(".")[0] for name in network_weights(given_network())}
    parts = [part for part in model._flatten_layers() if isinstance(part, keras.Model)]
    parts = [part for part in parts if wanted <= {layer.name for layer in part.layers}]
    found = [shapes(part, given_network()) for part in parts]
    others = [] if found else [{v.path: tuple(v.shape) for v in model.weights}]
    builder = "hvdlab.keras.models.assessment_network"
    return parts[network_among(found or others, model, builder)]
