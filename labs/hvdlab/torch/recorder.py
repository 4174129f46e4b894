"""Leaves what the grader and the plots read: each rank's weights after every epoch."""

import numpy as np
from torch import nn

from hvdlab.data import Batches
from hvdlab.record import RunRecord
from hvdlab.torch.models import to_arrays


class Recorder:
    """Writes this rank's weights, and which examples it read, once an epoch.

        recorder = Recorder(model, batches)
        for epoch in range(epochs):
            for images, labels in batches.epoch(epoch):
                ...
            recorder.epoch_end(epoch, accuracy=accuracy)

    Every rank makes one; the files go to `$HVDLAB_RUN_DIR` (default `./runs/<time>`), see
    `hvdlab.record`.

    Args:
        model: any module, on any device: weights go under their `state_dict` names.
        batches: the `Batches` that this rank trains on.
        folder: another folder for the run.
    """

    def __init__(self, model: nn.Module, batches: Batches, folder=None):
        self.model, self.batches = model, batches
        self.record = RunRecord(folder)

    def epoch_end(self, epoch: int, **metrics: float) -> None:
        """Record epoch `epoch` (0, 1, 2, ...); `metrics` are numbers to keep beside it."""
        read = self.batches.examples_read(epoch)
        arrays = to_arrays(self.model)
        said = {name: float(value) for name, value in metrics.items()}
        own = {
            "steps": -(-len(read) // self.batches.batch_size),
            "examples": len(read),
            "batch_size": self.batches.batch_size,
        }
        self.record.write(
            epoch, lambda file: np.savez(file, examples_read=read, **arrays), **said | own
        )
