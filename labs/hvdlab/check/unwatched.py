"""The watch in a process that got a function of the script from another process.

The functions of the instrumented script call the watch, and a script may send them to other ranks
(`hvd.broadcast_object(scheduler)`) or to processes that load data. Each process uses its own watch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

watches: list[Any] = []  # the `Watch` of this process, if it is watched


def of_this_process() -> Any:
    """Return the watch of this process, or one that writes down nothing."""
    return watches[-1] if watches else Unwatched()


class Unwatched:
    """A watch with the methods that an instrumented script calls: see `event_log.Watch`."""

    def each(self, line: int, iterable: Any) -> Any:
        """Return what a loop reads."""
        return iterable

    @contextmanager
    def rounds(self, line: int) -> Iterator["Unwatched"]:
        """A context for a while loop."""
        yield self

    def again(self, test: Any) -> Any:
        """Return the test of a while loop."""
        return test

    def decide(self, line: int, text: str, value: Any) -> Any:
        """Return a value that a decision depends on."""
        return value

    def collective(self, line: int, name: str, function: Callable) -> Callable:
        """Return a collective of mpi4py."""
        return function

    def whole(self, line: int, value: Any) -> Any:
        """Return what a rank takes a part of."""
        return value

    def part(self, line: int, value: Any, *bounds: Any) -> Any:
        """Return a slice.

        Args:
            bounds: start, stop and step.
        """
        return value[slice(*bounds)]
