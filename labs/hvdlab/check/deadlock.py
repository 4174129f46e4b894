"""Notices, from the events of a run, that its ranks wait for each other for ever, and ends them."""

import json
import threading
import time
from pathlib import Path

PATIENCE = 5.0  # seconds that a deadlock must last, and as many times the longest step


def read_events(folder: Path, ranks: int) -> dict[int, list[dict]]:
    """The events that the ranks have written so far."""
    events = {}
    for rank in range(ranks):
        path = folder / f"rank-{rank}.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        events[rank] = [json.loads(line) for line in lines]
    return events


class Deadlock:
    """Looks at the events while the ranks run, and ends them when they wait for each other for ever.

    That is so when every rank has ended, or waits in a collective, and not all in the same one, and
    it lasts: PATIENCE seconds, and PATIENCE times as long as the longest step of the run.
    """

    def __init__(self, folder: Path, ranks: int):
        self.folder, self.ranks = folder, ranks
        self.found = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._done.set()
        self._thread.join()

    def _watch(self):
        since, before = None, None
        while not self._done.wait(0.5):
            events = read_events(self.folder, self.ranks)
            state = [self._state(events[rank]) for rank in range(self.ranks)]
            stuck = None not in state and any(what != "end" for what, _ in state)
            # Two ranks in the same call are slow, not stuck.
            if not stuck or len(set(state)) == 1:
                since = before = None
            elif state != before:
                since, before = time.monotonic(), state
            elif time.monotonic() - since > PATIENCE * max(1.0, _longest_step(events)):
                self.found = True
                (self.folder / "stop").touch()
                return

    @staticmethod
    def _state(events):
        states = [e for e in events if e["kind"] in ("waiting", "goes on", "end")]
        if not states or states[-1]["kind"] == "goes on":
            return None
        last = states[-1]
        return ("end", None) if last["kind"] == "end" else (last["op"], last["steps"])


def _longest_step(events) -> float:
    at = [event["at"] for event in events[0] if event["kind"] == "step"]
    return max((b - a for a, b in zip(at, at[1:], strict=False)), default=0.0)
