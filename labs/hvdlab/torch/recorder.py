"""Record each rank's weights after every epoch, for the grader and the plots."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from hvdlab.data import Batches
from hvdlab.data.epoch_record import EpochRecord
from hvdlab.record import RunRecord
from hvdlab.recordable import require_batches, require_only_recorder
from hvdlab.torch.loader_record import LoaderRecord
from hvdlab.torch.models import to_arrays
from hvdlab.torch.recorded_module import recorded_module


class Recorder:
    """Writer of this rank's weights, and of which examples it read, once per epoch.

        recorder = Recorder(model, batches)
        for epoch in range(epochs):
            for images, labels in batches.epoch(epoch):
                ...
            recorder.epoch_end(epoch, accuracy=accuracy)

    Every rank needs one. The files go to `$HVDLAB_RUN_DIR` (default `./runs/<time>`), see
    `hvdlab.record`.

    Args:
        model: any module, on any device. Its weights are recorded under their `state_dict` names. Of a model
            in wrappers (DistributedDataParallel, DataParallel, torch.compile) the module inside is recorded.
            The grader requires the network of the assessment, or a module that contains it once.
        batches: the `Batches` that this rank trains on, or a DataLoader with a sampler.
        folder: another folder for the run. Default None: see above.

    Raises:
        NotRecordable: `model` or `batches` cannot be recorded, see `hvdlab.recordable`.
    """

    def __init__(
        self, model: nn.Module, batches: Batches | DataLoader, folder: str | Path | None = None
    ) -> None:
        self.model = recorded_module(model)
        self.batches = LoaderRecord(batches) if isinstance(batches, DataLoader) else batches
        require_batches(self.batches)
        self.record = RunRecord(folder)
        require_only_recorder(self, self.record.folder)
        self.epochs = EpochRecord(self.record, self.batches, lambda: to_arrays(self.model))

    def epoch_end(self, epoch: int, **metrics: float) -> None:
        """Record the weights, the metrics and the examples of an epoch.

        Args:
            epoch: number of the epoch, from 0.
            **metrics: numbers to record with it, such as accuracy=0.7.
        """
        if torch.distributed.is_available():
            from hvdlab.torch import process_group  # some builds of PyTorch cannot import it

            process_group.keep_group()  # a graded DDP script must not hang when it ends
        self.epochs.epoch_end(epoch, {name: float(value) for name, value in metrics.items()})
