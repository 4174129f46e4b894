"""Traces in the format of chrome://tracing, written by hand."""

import json

import pandas as pd
import pytest

from hvdlab.course import chrome_trace
from hvdlab.course.chrome_trace import Span


def event(name, start, duration, thread=1, cat="cpu_op", **other):
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "ts": start,
        "dur": duration,
        "pid": 9,
        "tid": thread,
        **other,
    }


NAMED = {"cat": "user_annotation"}


@pytest.fixture
def paths(tmp_path):
    """Two ranks of which the second begins 1 ms later; one step each."""
    found = []
    for rank, late in enumerate((0, 1000)):
        events = [
            event("aten::addmm", 5200 + late, 300),
            event("aten::linear", 5200 + late, 400),
            event("step", 5000 + late, 2000, **NAMED),
            event("gloo:all_reduce", 5500 + late, 1000, thread=2, **NAMED),
            event("PyTorch Profiler", 0, 9000, cat="Trace"),
            {"ph": "s", "name": "fwdbwd", "cat": "fwdbwd", "ts": 1, "pid": 9, "tid": 1},
            {"ph": "M", "name": "process_name", "ts": 0, "pid": 9, "args": {"name": "python"}},
        ]
        path = tmp_path / f"rank_{rank}.json"
        path.write_text(json.dumps({"traceEvents": events}))
        found.append(path)
    return found


def test_spans_have_one_zero_for_all_ranks_and_the_outer_span_comes_first(paths):
    first, second = chrome_trace.read(paths)
    assert [(s.name, s.kind, s.track, s.start, s.duration) for s in first] == [
        ("step", "annotation", 1, 0, 2),
        ("aten::linear", "operation", 1, 0.2, 0.4),
        ("aten::addmm", "operation", 1, 0.2, 0.3),
        ("gloo:all_reduce", "communication", 2, 0.5, 1),
    ]
    assert [span.start for span in second] == pytest.approx([1, 1.2, 1.2, 1.5])
    assert [span.name for span in chrome_trace.steps(first)] == ["step"]


def test_a_span_contains_those_inside_it_on_its_track_and_not_itself():
    outer, inner = Span("a", "operation", 1, 0, 10), Span("b", "operation", 1, 0, 10)
    assert outer.contains(inner) and not outer.contains(outer)
    assert not outer.contains(Span("c", "communication", 2, 1, 2))
    assert not outer.contains(Span("d", "operation", 1, 9, 2))


def one_step(forward, items, add=2):
    spans = [Span("step", "annotation", 1, 0, 10), Span("forward", "annotation", 1, 0, forward)]
    spans += [Span(name, "annotation", 1, 0, 1) for name in ("read batch", "backward", "update")]
    spans += [Span("aten::item", "operation", 1, n, 0.5) for n in range(items)]
    return spans + [Span("aten::add", "operation", 1, n, 0.5) for n in range(add)] + [
        Span("aten::mm", "operation", 1, 0, 1)
    ]  # fmt: skip


def test_runs_are_compared_by_phases_and_by_calls_that_differ():
    table = chrome_trace.compare_runs(one_step(5, 3, 3), one_step(2, 0))
    phases = ["read batch", "forward", "backward", "update"]
    assert list(table.index) == [*phases, "aten::item", "aten::add"]  # the largest change first
    assert table["fraction of step"].loc["forward"].tolist() == [0.5, 0.2]
    assert table["calls per step"].loc["aten::item"].tolist() == [3, 0]
    assert isinstance(table.columns, pd.MultiIndex)
    assert len(chrome_trace.compare_runs(one_step(5, 3, 3), one_step(2, 0), most=1)) == 5


def test_a_step_is_drawn_with_three_rows_for_each_rank(paths):
    figure = chrome_trace.draw_step(chrome_trace.read(paths), step=0)
    (axes,) = figure.axes
    assert len(axes.get_yticks()) == 6
    bars = [path.get_extents() for drawn in axes.collections for path in drawn.get_paths()]
    assert max(bar.x1 for bar in bars) == pytest.approx(2.5)  # the all-reduce of rank 1
