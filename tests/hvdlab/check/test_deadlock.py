"""Ranks that wait in different collectives wait for ever, and ranks in the same collective are slow."""

import json
import time

import pytest

from hvdlab.check import deadlock
from hvdlab.check.deadlock import Deadlock


@pytest.mark.parametrize(
    "one, other, found",
    [
        (("hvd.allreduce", "loss"), ("hvd.allreduce", "accuracy"), True),
        (("hvd.allreduce", None), ("_DistributedGradientTape.gradient", None), True),
        (("hvd.allreduce", "loss"), ("hvd.allreduce", "loss"), False),
        (("a graph", None, 3), ("a graph", None, 4), True),  # with 3 and 4 collectives
        (("a graph", None, 3), ("a graph", None, 3), False),
        (("a step", None), ("a step", None), True),  # each rank has a loop of its own
    ],
)
def test_what_two_ranks_wait_in(one, other, found, tmp_path, monkeypatch):
    monkeypatch.setattr(deadlock, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(deadlock, "POLL_SECONDS", 0.01)
    for rank, (op, name, *traced) in enumerate((one, other)):
        loops = [[5, 1], [6 + rank if op == "a step" else 6, 2]]
        event = {"kind": "waiting", "at": 1, "steps": 0, "op": op, "name": name, "loops": loops}
        events = [{"kind": "traced", "op": "", "function": "f", "graph": 0}] * sum(traced) + [event]
        (tmp_path / f"rank-{rank}.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    with Deadlock(tmp_path, 2) as guard:
        end = time.monotonic() + (10 if found else 1)
        while not guard.found and time.monotonic() < end:
            time.sleep(0.01)
    assert guard.found == (tmp_path / "stop").exists() == found
