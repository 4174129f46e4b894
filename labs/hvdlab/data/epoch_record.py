"""What the recorders of both frameworks have in common: they write weights, and what a rank read."""

from collections.abc import Callable

import numpy as np

from hvdlab import probe_mode
from hvdlab.data.batches import Batches
from hvdlab.record import RunRecord


class EpochRecord:
    """Writes the record of each epoch; in the grader's probe, of steps in the middle of an epoch.

    Args:
        run: the record of this rank.
        batches: the batches that this rank trains on, or an object with the same `batch_size` and
            `examples_read`.
        arrays: returns the weights of the model now, by name; None as long as there is no model.
    """

    def __init__(
        self, run: RunRecord, batches: Batches, arrays: Callable[[], dict[str, np.ndarray] | None]
    ) -> None:
        self.run, self.batches, self.arrays = run, batches, arrays
        self.steps = 0
        self.in_epochs = probe_mode.COPIES > 0 and probe_mode.STEPS == 0
        if self.in_epochs:
            batches.snapshots = probe_mode.Snapshots(self._write, self._weights)

    def fit_begins(self) -> None:
        """Let `step_end` say when a step is done, instead of the batches that are read."""
        self.batches.snapshots = None

    def step_end(self) -> None:
        """Record the weights after a step of `fit` if it is one of the probe's snapshots."""
        self.steps += 1
        if self.in_epochs and self.steps in probe_mode.SNAPSHOTS:
            self._write(self.steps)

    def epoch_end(self, epoch: int, metrics: dict[str, float]) -> None:
        """Record the weights, the metrics and the examples of an epoch.

        Args:
            epoch: number of the epoch, from 0.
            metrics: numbers to record with it.
        """
        if not self.in_epochs:
            self._write(epoch, metrics)

    def _write(self, number: int, metrics: dict[str, float] | None = None) -> None:
        read, arrays = self.batches.examples_read(number), self.arrays()
        if arrays is None:
            return
        own = {
            "steps": -(-len(read) // self.batches.batch_size),
            "examples": len(read),
            "batch_size": self.batches.batch_size,
            "steps_can_be_seen": 1,  # in the probe
        }
        self.run.write(
            number,
            lambda file: np.savez(file, examples_read=read, **arrays),
            **{**(metrics or {}), **own},
        )

    def _weights(self) -> list[bytes]:
        return [array.tobytes() for array in (self.arrays() or {}).values()]
