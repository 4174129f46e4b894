"""Limits on what a run may record: the weights after each epoch, and the indices of the examples it read."""

from dataclasses import dataclass
from math import prod

from hvdlab.assessment_networks import ASSESSMENT_NET, network_weights

# Size of a file without its weights: the indices of an epoch, and the structure of the zip archive.
FILE_OVERHEAD_BYTES = 6 << 20
# Indices of an epoch of a correct script: 50,000 examples with four or eight bytes each.
EPOCH_INDICES_BYTES = 512 << 10
MIN_LIMIT_BYTES = 1 << 30  # limit of all records of a run, if its ranks need less


@dataclass(frozen=True)
class RecordLimits:
    """The limits on the records of one run.

    Attributes:
        epochs: number of epochs; the numbers of recorded epochs are below it.
        file_bytes: largest size of a file, which holds the weights of one rank after one epoch.
        rank_bytes: what a correct script records on one rank in this many epochs.
    """

    epochs: int
    file_bytes: int
    rank_bytes: int

    @classmethod
    def of(cls, network: str, epochs: int) -> "RecordLimits":
        """Return the limits for a network.

        Args:
            epochs: largest number of epochs.
        """
        weights = weights_bytes(network)
        rounded = -(-weights // (1 << 20)) << 20  # up to a whole MiB
        return cls(epochs, rounded + FILE_OVERHEAD_BYTES, epochs * (weights + EPOCH_INDICES_BYTES))

    def all_bytes(self, ranks: int) -> int:
        """Return how many bytes all records of a run may take.

        Args:
            ranks: number of ranks.
        """
        return max(MIN_LIMIT_BYTES, ranks * self.rank_bytes)


def weights_bytes(network: str) -> int:
    """Return the size in bytes of a network's weights and batch-norm statistics in float32."""
    return 4 * sum(map(prod, network_weights(network).values()))


ASSESSMENT_LIMITS = RecordLimits.of(ASSESSMENT_NET, 100)
