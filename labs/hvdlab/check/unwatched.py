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
    """A watch that writes down nothing: most methods of a watch return their last argument."""

    def __getattr__(self, name: str) -> Callable:
        return lambda *given: given[-1]

    def part(self, line: int, value: Any, *bounds: Any) -> Any:
        """Return a slice."""
        return value[slice(*bounds)]

    @contextmanager
    def rounds(self, line: int) -> Iterator["Unwatched"]:
        """A context for a while loop."""
        yield self
