"""What `hvdlab check` records in a correct run, as dicts, and functions that introduce mistakes."""

from hvdlab.check import diagnosis
from hvdlab.check.run_events import Run
from hvdlab.trace import records


def run(steps=5, ranks=2, **changes):
    """Return {rank: its events}. A change is a function (rank, step) -> value that a step records."""
    events = {}
    for rank in range(ranks):
        kinds = [
            {"kind": "start", "line": 0, "rank": rank, "size": ranks},
            {"kind": "init", "line": 2, "size": ranks},
            {"kind": "optimizer", "line": 3, "optimizer": 0, "name": "SGD", "api": "torch"},
            {
                "kind": "wrap",
                "line": 4,
                "what": "hvd.DistributedOptimizer",
                "optimizer": 0,
                "own_module": False,
                "reduces": "Average",
            },
            {"kind": "broadcast", "line": 5, "what": "hvd.broadcast_parameters", "weights": 2},
        ]
        for step in range(steps):
            facts = {
                "kind": "step", "line": 7, "optimizer": 0, "wrapped": True, "rate": 0.2,
                "momentum": 0.0, "weights": [1.0 + step, 2.0], "loss": 1.0,
                "batch": f"{rank}-{step}", "rate_line": 3, "loops": [[6, step + 1]], "stack": [7], "rows": 32,
            }  # fmt: skip
            facts |= {name: change(rank, step) for name, change in changes.items()}
            kinds.append(facts)
        kinds.append({"kind": "loop", "line": 6, "length": steps, "made": None, "nested": False})
        kinds.append({"kind": "pass", "line": 6, "iterations": steps, "left": "at its end"})
        kinds.append({"kind": "end", "line": None, "error": None, "made": None})
        events[rank] = [{"at": i, "steps": 0, **event} for i, event in enumerate(kinds)]
    return events


def as_run(events, single=None):
    """Return the run with these events."""
    of_ranks = {rank: [*map(records.from_fields, of)] for rank, of in events.items()}
    return Run(of_ranks, single and as_run(single))


def judge(events, facts, single=None):
    return diagnosis.judge(as_run(events, single), facts)


def named(events, facts, single=None):
    return [(one.id, one.line) for one in judge(events, facts, single)]


def without(events, kind):
    return {rank: [e for e in of if e["kind"] != kind] for rank, of in events.items()}


def plus(events, rank, **event):
    own = {"stack": [event["line"]], "name": None} if event["kind"] == "collective" else {}
    events[rank].insert(-1, {"at": 99, "steps": 0, **own, **event})
    return events
