"""What a rank reads and reaches in each epoch of a whole run: the numbers of the rank report."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hvdlab.check.fingerprints import number


class Mean:
    """A weighted mean, which is reset when it is read."""

    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def add(self, value: float, weight: float = 1) -> None:
        """Add a value with a weight."""
        self.total, self.weight = self.total + value * weight, self.weight + weight

    def take(self) -> float | None:
        """Return the mean, or None if nothing was added, and reset it."""
        mean = self.total / self.weight if self.weight else None
        self.total = self.weight = 0.0
        return mean


class Totals:
    """The numbers of the present epoch of a rank, and those of its last one.

    Attributes:
        weights: optimizer -> a function that returns its weights.
        again: whether an input was read that an earlier epoch has read, too.
    """

    def __init__(self) -> None:
        self.weights: dict[Any, Callable[[], list[Any]]] = {}
        self.again = False
        self.epochs = self.steps = 0
        self.loss, self.of_classes, self.accuracy, self.held_out = Mean(), Mean(), Mean(), Mean()
        self._pending: tuple[float, float | None, int] | None = (
            None  # right, loss, examples of a batch
        )
        self._now: list[int] | None = []  # hashes of the inputs; None: they are not known
        self._before: set[int] = set()
        self._last: dict[str, Any] = {}

    def step(self, read: list[int] | None, loss: Any) -> None:
        """Count a step with the hashes of its inputs."""
        self.steps += 1
        if read is None or self._now is None:
            self._now = None
        else:
            self._now += read
        if (value := number(loss)) is not None:
            self.loss.add(value, len(read or [0]))
        self.held_out.take()  # what was evaluated before belongs to the epoch before

    def epoch(self, logs: dict[str, Any]) -> None:
        """End an epoch, if it made steps.

        Args:
            logs: of Keras, whose numbers replace those of the steps.
        """
        if not self.steps:
            return
        self.epochs += 1
        losses = self.of_classes.take(), self.loss.take()
        loss = next((mean for mean in losses if mean is not None), None)
        accuracy = self.accuracy.take()
        self._last = {
            "examples": None if self._now is None else len(self._now),
            "steps_of_epoch": self.steps,
            "loss": number(logs.get("loss", loss)),
            "accuracy": number(logs.get("accuracy", accuracy)),
            "held_out": number(logs.get("val_accuracy")),
            "inputs": None if self._now is None else sorted(set(self._now)),
        }
        now = set(self._now or ())
        self.again = self.again or not now.isdisjoint(self._before)
        self._before |= now
        self.steps, self._now = 0, []

    def classified(self, scores: Any, labels: Any, loss: Any) -> None:
        """Keep the accuracy of a batch of PyTorch for which the script computes a loss of classes.

        It counts as evaluation, unless a backward pass follows.
        """
        self._evaluated()
        if scores.ndim == 2 and labels.ndim == 1:
            right = float((scores.detach().argmax(dim=1) == labels).float().mean())
            self._pending = right, number(loss.detach()), len(labels)

    def backward(self) -> None:
        """Count the last batch as one of training.

        The script may multiply what it calls `backward` of, so the loss is that of the classes.
        """
        if self._pending:
            right, loss, count = self._pending
            self.accuracy.add(right, count)
            if loss is not None:
                self.of_classes.add(loss, count)
            self._pending = None

    def _evaluated(self) -> None:
        """Count the last batch as one of evaluation."""
        if self._pending:
            self.held_out.add(self._pending[0], self._pending[2])
            self._pending = None

    def record(self) -> dict[str, Any]:
        """Return the fields of `records.Report`."""
        self._evaluated()
        self.epoch({})
        held_out = self._last.get("held_out")
        held_out = self.held_out.take() if held_out is None else held_out
        arrays = [_array(w) for weights in self.weights.values() for w in weights()]
        digest = hashlib.sha256()
        for array in arrays:
            digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        return {
            **self._last,
            "held_out": held_out,
            "weights": digest.hexdigest()[:8] if arrays else None,
            "epochs": self.epochs,
            "again": self.again,
        }


def _array(weight: Any) -> np.ndarray:
    return (
        weight.detach().cpu().float().numpy() if hasattr(weight, "detach") else np.asarray(weight)
    )
