"""The loops of a watched script, which end after a few steps of training: see `Watch.each`."""

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from hvdlab.check.epoch_totals import Totals
from hvdlab.trace import records

EPOCHS = 2  # rounds after which a loop around a training loop ends
UNKNOWN = -2  # tf.data.UNKNOWN_CARDINALITY
MOST_BATCHES = 2000  # that are counted
COUNT_SECONDS = 10.0


class Watch(Protocol):
    """What loops use of `hvdlab.check.event_log.Watch`.

    Attributes:
        limit: training steps after which a loop ends.
        progress: steps of all optimizers and broadcasts of weights so far.
        passes: training loops that have ended.
        running: the loops that are running, the innermost last.
        loader: what the script has begun to read, until it evaluates.
        totals: numbers of a whole run, in which no loop ends early; else None.
    """

    limit: int
    progress: int
    passes: int
    running: "list[Loop]"
    loader: tuple[int | None, bool] | None
    totals: Totals | None

    def line(self) -> int | None:
        """Return the line of the script that is running."""

    def note(self, kind: str, line: int | None = None, **facts: Any) -> None:
        """Write an event."""


class Loop:
    """A loop of the script that is running, and when it ends: see `Watch.each`.

    Args:
        line: of the script or of a module of it.
        iterable: what it loops over, for its length. Default None.
    """

    def __init__(self, watch: Watch, line: int, iterable: Any = None) -> None:
        self.watch, self.line, self.iterable = watch, line, iterable
        self.item = None
        self.iteration, self.trained = 0, 0  # rounds that have started, and rounds that trained
        self.progress, self.passes = watch.progress, watch.passes  # when the last round ended
        self.left = "early"  # by `break`, `return` or an error

    def __enter__(self) -> "Loop":
        self.watch.running = [*self.watch.running, self]
        return self

    def ended(self) -> bool:
        """Return, after a round, whether it was the last round of the loop."""
        if self.watch.progress == self.progress:
            return False
        self.trained += 1
        nested = self.watch.passes > self.passes
        self.progress, self.passes = self.watch.progress, self.watch.passes
        if self.trained == 1:
            made = getattr(self.iterable, "_hvdlab_line", None)
            length = _length(self.iterable)
            self.watch.note(records.Loop, self.line, length=length, made=made, nested=nested)
        if self.watch.totals or self.trained < (EPOCHS if nested else self.watch.limit):
            return False
        self.left = "cut"
        return True

    def again(self, test: Any) -> bool:
        """Return the truth of the test of a while loop, or False when the loop must end."""
        if self.ended():
            return False
        if test:
            self.iteration += 1
            return True
        self.left = "at its end"
        return False

    def __exit__(self, *error: object) -> None:
        if self.trained or self.watch.progress > self.progress:
            self.watch.passes += 1
            if self.watch.totals:
                self.watch.totals.epoch({})
            # The line of `break` or `return` is running.
            leaves = self.watch.line() if self.left == "early" else None
            # A round that `break` ends before its step trains nothing.
            idle = self.left == "early" and self.watch.progress == self.progress
            facts = {"iterations": self.iteration - idle, "left": self.left, "leaves": leaves}
            self.watch.note(records.Pass, self.line, **facts)
        self.watch.running = [loop for loop in self.watch.running if loop is not self]


class Pass:
    """The iterable of a `for` loop, which ends early: see `Watch.each`."""

    def __init__(self, watch: Watch, line: int, iterable: Iterable) -> None:
        self.watch, self.line, self.iterable = watch, line, iterable

    def __len__(self) -> int:
        return len(self.iterable)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.iterable, name)

    def __iter__(self) -> Iterator:
        with Loop(self.watch, self.line, self.iterable) as loop:
            for loop.item in self.iterable:
                loop.iteration += 1
                yield loop.item
                if loop.ended():
                    self._count()
                    return
            loop.left = "at its end"

    def _count(self) -> None:
        """Write down the batches of a data set that does not know them, after the check has cut the loop."""
        loader = self.watch.loader  # counting them is no reading of the script
        batches = counted(self.iterable)
        self.watch.loader = loader
        if batches:
            self.watch.note(records.Loop, self.line, length=batches, made=None, nested=False)


def counted(data: Any) -> int | None:
    """Return the batches of a data set of tf.data that does not know them.

    Returns:
        The batches; None if they are many, and for anything else.
    """
    if not hasattr(data, "cardinality") or int(data.cardinality()) != UNKNOWN:
        return None
    batches, until = 0, time.monotonic() + COUNT_SECONDS
    for _ in data.take(MOST_BATCHES):
        batches += 1
        if time.monotonic() > until:
            return None
    return batches if batches < MOST_BATCHES else None


def planned(iterables: list[Any]) -> int | None:
    """Return the rounds that nested loops make in total, or None if one of them does not know its rounds."""
    lengths = [_length(iterable) for iterable in iterables]
    return None if None in lengths else math.prod(lengths)


def _length(iterable: Any) -> int | None:
    """Return the length of an iterable, or None if it has none."""
    try:
        return len(iterable)
    except (TypeError, NotImplementedError):
        return None
