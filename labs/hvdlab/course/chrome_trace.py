"""Read and draw traces of PyTorch's profiler, which are files in the format of chrome://tracing.

    ranks = read(["case_0_rank_0.json", "case_0_rank_1.json"])
    [span for span in ranks[0] if span.kind == "communication"]
    draw_step(ranks, step=1)

Only complete events ("ph": "X") are read. All times are in milliseconds.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

KINDS = {"cpu_op": "operation", "user_annotation": "annotation"}  # our word by the profiler's
ROUNDING = 1e-5  # milliseconds; the file rounds starts and durations
COLLECTIVE = ("gloo:", "nccl:")
# The phases of a step that a script annotates, with a colour and a pattern that differs in grey print.
PHASES = {
    "read batch": ("#0072B2", ""),
    "forward": ("#56B4E9", "//"),
    "backward": ("#D55E00", "\\\\"),
    "update": ("#CC79A7", "xx"),
}


@dataclass(frozen=True)
class Span:
    """Something that happened from one moment to another.

    Args:
        name: for example "backward" or "aten::mm".
        kind: "annotation" (a name that the program or PyTorch gave to a section of code), "operation" (of
            PyTorch), or "communication" (a collective).
        track: number of the thread.
    """

    name: str
    kind: str
    track: int
    start: float
    duration: float

    @property
    def end(self) -> float:
        """Milliseconds since the first span of all ranks."""
        return self.start + self.duration

    def contains(self, other: "Span") -> bool:
        """Return whether another span of the same track lies inside this one."""
        return (
            other is not self
            and other.track == self.track
            and self.start - ROUNDING <= other.start
            and other.end <= self.end + ROUNDING
        )


def read(paths: Sequence[str | Path]) -> list[list[Span]]:
    """Return the spans of each rank, ordered by their start; a span comes before those inside it.

    The ranks must have run on one host, because the clocks of different hosts differ.
    """
    events = [_events(path) for path in paths]
    zero = min(event["ts"] for rank in events for event in rank)
    return [sorted((_span(event, zero) for event in rank), key=_order) for rank in events]


def _events(path: str | Path) -> list[dict]:
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    return [
        event
        for event in content["traceEvents"]
        if event["ph"] == "X" and event.get("cat") in KINDS
    ]


def _span(event: dict, zero: float) -> Span:
    collective = event["name"].startswith(COLLECTIVE)
    kind = "communication" if collective else KINDS[event["cat"]]
    start = (event["ts"] - zero) / 1000
    return Span(event["name"], kind, event["tid"], start, event["dur"] / 1000)


def _order(span: Span) -> tuple[float, float]:
    return span.start, -span.duration


def steps(spans: list[Span]) -> list[Span]:
    """Return the spans that the script named "step"."""
    return [span for span in spans if span.name == "step"]


def compare_runs(run: list[Span], correct: list[Span], most: int = 12) -> pd.DataFrame:
    """Return what differs between two traces: the phases, and the names that are called more or less often.

    Args:
        most: number of names in addition to the phases; those with the largest relative changes. Default 12.

    Returns:
        a table with a row for each name. The columns are the calls per step and the fraction of the step,
        each for `run` and for `correct`. The fraction is the total time, so names that contain each other
        add up to more than 1.
    """
    table = pd.concat({"this run": _per_step(run), "correct": _per_step(correct)}, axis=1).fillna(0)
    table = table.swaplevel(axis=1).sort_index(axis=1, ascending=[True, False])
    calls = table["calls per step"]
    more = (calls["this run"] - calls["correct"]).abs()
    changes = pd.DataFrame({"ratio": more / calls.max(axis=1), "calls": more})
    others = changes[(more > 0) & ~more.index.isin(PHASES)].sort_values(
        ["ratio", "calls"], ascending=False, kind="stable"
    )
    return table.loc[[*PHASES, *others.index[:most]]].round(3)


def _per_step(spans: list[Span]) -> pd.DataFrame:
    made = steps(spans)
    rows = pd.DataFrame([(span.name, span.duration) for span in spans], columns=["name", "time"])
    grouped = rows.groupby("name")["time"]
    whole = sum(step.duration for step in made)
    return pd.DataFrame(
        {"calls per step": grouped.size() / len(made), "fraction of step": grouped.sum() / whole}
    )


def draw_step(ranks: list[list[Span]], step: int = 1) -> Figure:
    """Draw one step of all ranks as a Gantt chart: phases, operations and communication of each rank.

    Args:
        step: number of the step in the trace, from 0. Default 1.
    """
    figure, axes = plt.subplots(figsize=(10, 0.5 + 1.2 * len(ranks)), layout="constrained")
    zero = min(steps(spans)[step].start for spans in ranks)
    names = []
    for rank, spans in enumerate(ranks):
        whole = steps(spans)[step]
        inside = [span for span in spans if whole.start <= span.start < whole.end]
        for name, (colour, hatch) in PHASES.items():
            bars = _bars([span for span in inside if span.name == name], zero)
            label = name if rank == 0 else None
            axes.broken_barh(
                bars, (3.6 * rank, 0.8), facecolor=colour, hatch=hatch, alpha=0.6, label=label
            )
        operations = [s for s in inside if s.kind == "operation" and s.track == whole.track]
        axes.broken_barh(_bars(operations, zero), (3.6 * rank + 1, 0.8), color="#444444")
        collectives = [span for span in inside if span.kind == "communication"]
        axes.broken_barh(
            _bars(collectives, zero),
            (3.6 * rank + 2, 0.8),
            facecolor="#E69F00",
            edgecolor="black",
            linewidth=0.5,
        )
        names += [f"rank {rank}: phases", "operations", "all-reduces"]
    rows = [3.6 * rank + row + 0.4 for rank in range(len(ranks)) for row in range(3)]
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds since the step began")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _bars(spans: list[Span], zero: float) -> list[tuple[float, float]]:
    return [(span.start - zero, span.duration) for span in spans]
