"""Record which examples a DataLoader reads, as `hvdlab.data.Batches` does for itself: see `LoaderRecord`."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import DataLoader


class LoaderRecord:
    """The examples that a DataLoader has read in its latest epoch.

    It stands in place of the loader's sampler, and passes on the indices that the sampler yields. So it
    records what happened, with any sampler: a DistributedSampler, or the one of `shuffle=True`.

    Args:
        loader: of this rank. Its data set can be indexed, and it forms batches itself.

    Attributes:
        batch_size: examples per step on this rank.

    Raises:
        ValueError: the loader does not form batches from a sampler.
    """

    def __init__(self, loader: DataLoader) -> None:
        if loader.batch_size is None:
            raise ValueError(
                "a DataLoader must form batches itself, so that what it reads can be recorded: "
                "DataLoader(data, batch_size, sampler=sampler)."
            )
        self.batch_size = loader.batch_size
        self._sampler = loader.batch_sampler.sampler
        self._read: list[int] = []
        loader.batch_sampler.sampler = self

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of an epoch, and record them."""
        self._read = []
        for index in self._sampler:
            self._read.append(int(index))
            yield index

    def __len__(self) -> int:
        """Return the number of examples of an epoch."""
        return len(self._sampler)

    def examples_read(self, epoch: int) -> np.ndarray:
        """Return the indices that were read in the latest epoch, in order: int32 of shape (m,).

        Args:
            epoch: number of the epoch that has just ended; a loader does not know its number.
        """
        return np.array(self._read, np.int32)
