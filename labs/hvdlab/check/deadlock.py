"""Detect from the events of a run that its ranks wait for each other for ever, and end the run."""

import threading
import time
from pathlib import Path

from hvdlab.trace import records

PATIENCE_SECONDS = 5.0  # that a deadlock must last; and as many times the longest step
POLL_SECONDS = 0.5


def read_events(folder: Path, ranks: int) -> records.Trace:
    """Return the events that the ranks have written so far.

    Args:
        folder: with a file rank-R.jsonl per rank.
        ranks: number of ranks.

    Returns:
        Rank -> its events, in the order in which they happened; empty for a rank without a file.
    """
    events = {}
    for rank in range(ranks):
        path = folder / f"rank-{rank}.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last line may be half written
        events[rank] = [records.from_line(line) for line in lines]
    return events


class Deadlock:
    """A context that ends the ranks of a run when they wait for each other for ever.

    The ranks are in a deadlock if every rank has ended or waits in a collective, the ranks do not all wait
    in the same collective (kind, name of the tensor, steps so far, collectives in the graphs so far, loops
    around it), and this lasts for PATIENCE_SECONDS and for PATIENCE_SECONDS times the longest step of the
    run (in seconds).

    Args:
        ranks: number of ranks.

    Attributes:
        found: whether there was a deadlock.
    """

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder, self.ranks = folder, ranks
        self.found = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Deadlock":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        since, before = None, None
        while not self._done.wait(POLL_SECONDS):
            events = read_events(self.folder, self.ranks)
            states = [self._state(events[rank]) for rank in range(self.ranks)]
            stuck = None not in states and any(state[0] != "end" for state in states)
            # Two ranks in the same call are slow, and no deadlock.
            if not stuck or len(set(states)) == 1:
                since = before = None
            elif states != before:
                since, before = time.monotonic(), states
            elif time.monotonic() - since > PATIENCE_SECONDS * max(1.0, _longest_step(events)):
                self.found = True
                (self.folder / "stop").touch()
                return

    @staticmethod
    def _state(events: list[records.Record]) -> tuple | None:
        """Return where a rank waits: see the class; None if it runs."""
        states = [
            e for e in events if isinstance(e, records.Waiting | records.Continues | records.End)
        ]
        if not states or isinstance(states[-1], records.Continues):
            return None
        last = states[-1]
        if isinstance(last, records.End):
            return ("end",)
        traced = sum(isinstance(event, records.Traced) for event in events)
        loops = tuple(line for line, _ in last.loops)
        return last.op, last.name, last.steps, traced, loops


def _longest_step(events: records.Trace) -> float:
    """Return the longest time between two steps of rank 0, in seconds."""
    at = [event.at for event in events[0] if isinstance(event, records.Step)]
    return max((b - a for a, b in zip(at, at[1:], strict=False)), default=0.0)
