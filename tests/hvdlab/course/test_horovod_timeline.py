"""Horovod's timeline on a file written by hand: steps, phases, fused messages, bytes."""

import json

import pytest

from hvdlab.course import horovod_timeline


def events(pid, ready, copy, reduce, end, dtype="float32", shape="[2, 3]"):
    """One exchange of a tensor: ready on two ranks, perhaps copied, reduced, done."""
    found = [{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": ready[0], "pid": pid}]
    found += [
        {"ph": "X", "name": str(r), "ts": t, "pid": pid, "dur": 0} for r, t in enumerate(ready)
    ]
    found += [{"ph": "E", "ts": max(ready), "pid": pid}]
    found += [{"ph": "B", "name": "ALLREDUCE", "ts": copy or reduce, "pid": pid}]
    if copy:
        found += [{"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": copy, "pid": pid}]
        found += [{"ph": "E", "ts": reduce, "pid": pid}]
    found += [{"ph": "B", "name": "MPI_ALLREDUCE", "ts": reduce, "pid": pid}]
    found += [{"ph": "E", "ts": end, "pid": pid}]
    return [*found, {"ph": "E", "ts": end, "pid": pid, "args": {"dtype": dtype, "shape": shape}}]


@pytest.fixture
def path(tmp_path):
    """Two steps of two gradients, fused in the second step only; and a metric, reduced once."""
    names = {1: "a", 2: "b", 3: "metric"}
    found = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for pid, name in names.items()
    ]
    found += events(1, (1000, 1500), None, 2000, 3000) + events(2, (1000, 1000), None, 3500, 4000)
    found += events(3, (5000, 5000), None, 5100, 5200, shape="[]")
    found += events(1, (6000, 6000), 6100, 6200, 7200) + events(2, (6000, 6400), 6101, 6201, 7201)
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(found))
    return path


def test_phases_of_each_step(path):
    table = horovod_timeline.read(path)
    assert set(table["tensor"]) == {"a", "b"}  # the metric is no gradient
    first = table[(table["tensor"] == "a") & (table["step"] == 0)].set_index("phase")
    assert first.loc["negotiate", "milliseconds"] == 0.5
    assert first.loc["ready 1", "start"] == 0.5
    assert first.loc["all-reduce", ["start", "milliseconds"]].tolist() == [1, 1]
    assert "copy in" not in first.index  # and the copy of the second step stays there
    assert table[table["phase"] == "copy in"]["step"].tolist() == [1, 1]
    assert table["shape"].unique().tolist() == ["2 x 3"]


def test_fused_tensors_are_one_message(path):
    sent = horovod_timeline.messages(horovod_timeline.read(path))
    assert sent["operations"].tolist() == [2, 1]
    assert sent["bytes"].tolist() == [48, 48]


def test_a_killed_run_leaves_a_file_that_can_be_read(path):
    whole = horovod_timeline.read(path)
    path.write_text(path.read_text().removesuffix("]") + ",\n")
    assert horovod_timeline.read(path).equals(whole)
