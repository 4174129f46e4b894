"""Where a rank waits for other ranks: a thread of its own writes that down when it lasts long."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hvdlab.trace import records

LONG_SECONDS = 2.0  # in one call, after which it is written down as waiting
POLL_SECONDS = 0.25


class Wait(NamedTuple):
    """A call in which a rank may wait for other ranks.

    Attributes:
        operation: name of the call.
        line: of the script.
        start: when it began, in seconds.
        name: that the script gives to the tensor, or None.
        steps: of all optimizers when it began, or None.
        stack: lines of the script that have led to it, the outermost first.
    """

    operation: str
    line: int | None
    start: float
    name: str | None = None
    steps: int | None = None
    stack: tuple[int, ...] = ()


class Watch(Protocol):
    """What this module uses of `hvdlab.check.event_log.Watch`.

    Attributes:
        blocks: path of the script, or of a module of it -> see `places`.
        steps: of all optimizers so far.
        waits: the calls that hooks know, the innermost last.
        loops: [line, iteration] of the loops that are running.
    """

    blocks: dict[str, int]
    steps: int
    waits: list[Wait]
    loops: list[list[int]]

    def note(self, kind: str, line: int | None = None, **facts: Any) -> None:
        """Write an event."""


def note_long_waits(watch: Watch, folder: Path) -> None:
    """Write down long waits until the process ends, and end it when there is a file `stop`."""
    noted = unknown = None
    while True:
        time.sleep(POLL_SECONDS)
        wait = next(reversed(watch.waits), None)  # the script's thread changes it meanwhile
        if wait is None:
            wait = unknown = _in_horovod(watch, unknown)
        if noted and wait != noted:
            watch.note(records.Continues, 0)
            noted = None
        if wait and not noted and time.monotonic() - wait.start > LONG_SECONDS:
            noted = wait
            facts = {"op": wait.operation, "name": wait.name, "stack": [*wait.stack]}
            watch.note(records.Waiting, wait.line, loops=watch.loops, **facts)
        if (folder / "stop").exists():
            os._exit(3)


def _in_horovod(watch: Watch, before: Wait | None) -> Wait | None:
    """Return where the script is in a function of Horovod that no hook has seen, or None."""
    frame, function = sys._current_frames().get(threading.main_thread().ident), None
    while frame and frame.f_code.co_filename not in watch.blocks:
        if frame.f_globals.get("__name__", "").startswith("horovod."):
            function = frame.f_code.co_name
        frame = frame.f_back
    if not frame or function in (None, "<module>"):  # the import of Horovod may take long
        return None
    now = Wait(
        function,
        watch.blocks[frame.f_code.co_filename] + frame.f_lineno,
        time.monotonic(),
        steps=watch.steps,
    )
    return before if before and before._replace(start=now.start) == now else now
