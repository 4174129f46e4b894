"""How much a run may record: the weights of its network after each epoch, and what was read for them."""

from dataclasses import dataclass
from math import prod

from hvdlab.assessment_networks import ASSESSMENT_NET, network_weights

INDICES_BYTES = (
    6 << 20
)  # of a file: what is read for an epoch, and the zip archive around the arrays
EPOCH_INDICES_BYTES = 512 << 10  # of a right script: each of 50,000 examples in four or eight bytes
LEAST_BYTES = 1 << 30


@dataclass(frozen=True)
class RecordLimits:
    """Limits of one run's records.

    Attributes:
        epochs: their numbers are below this one.
        file_bytes: of the weights of one rank after one epoch.
        rank_bytes: of what a right script records on one rank in that many epochs.
    """

    epochs: int
    file_bytes: int
    rank_bytes: int

    @classmethod
    def of(cls, network: str, epochs: int) -> "RecordLimits":
        """The limits for a network of `hvdlab.assessment_networks`."""
        weights = weights_bytes(network)
        whole = -(-weights // (1 << 20)) << 20  # MiB
        return cls(epochs, whole + INDICES_BYTES, epochs * (weights + EPOCH_INDICES_BYTES))

    def all_bytes(self, ranks: int) -> int:
        """Bytes that the records of a run may take."""
        return max(LEAST_BYTES, ranks * self.rank_bytes)


def weights_bytes(network: str) -> int:
    """Bytes of a network's weights and batch-norm statistics in float32."""
    return 4 * sum(map(prod, network_weights(network).values()))


ASSESSMENT_LIMITS = RecordLimits.of(ASSESSMENT_NET, 100)
