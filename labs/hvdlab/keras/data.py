"""Feeds `hvdlab.data.Batches` to `model.fit`."""

import keras
import numpy as np

from hvdlab.data import Batches


class BatchSequence(keras.utils.PyDataset):
    """One rank's batches as a Keras data set; each epoch of `fit` is the next epoch of `batches`.

    No worker processes: the images are in memory, and a batch takes less than a millisecond.

    Args:
        batches: the `Batches` to read.
    """

    def __init__(self, batches: Batches):
        super().__init__(workers=1, use_multiprocessing=False)
        self.batches, self.epoch = batches, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.batches.get(self.epoch, index)

    def on_epoch_end(self) -> None:
        self.epoch += 1
