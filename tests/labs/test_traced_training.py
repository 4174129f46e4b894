"""The traces of lab 17 contain what its cases are about: counts of one step, and all files."""

from pathlib import Path

import pytest

from hvdlab import launch
from hvdlab.course import chrome_trace, horovod_timeline
from hvdlab.exercises import lab17_read_a_trace as exercises

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "labs" / "traced_training.py"
LINEAR_LAYERS, GRADIENTS, IMAGES = 8, 24, 64

pytestmark = pytest.mark.mpi


def test_each_case_differs_from_the_correct_run_in_its_own_count(tmp_path):
    printed = launch.run(
        SCRIPT,
        "--case",
        0,
        2,
        3,
        4,
        5,
        "--steps",
        2,
        "--out",
        tmp_path,
        ranks=2,
        show=False,
        timeout=300,
    )
    assert printed.count('{"case"') == 5
    assert "aten::addmm" in (tmp_path / "case_0.txt").read_text()
    expected = {
        0: (LINEAR_LAYERS, 4, 0),
        2: (2 * LINEAR_LAYERS, 4, 0),
        3: (LINEAR_LAYERS, GRADIENTS, 0),
        4: (LINEAR_LAYERS, 4, 0),
        5: (LINEAR_LAYERS, 4, 11 * IMAGES),
    }
    for case, counts in expected.items():
        ranks = chrome_trace.read([tmp_path / f"case_{case}_rank_{rank}.json" for rank in (0, 1)])
        assert [len(chrome_trace.steps(spans)) for spans in ranks] == [2, 2]
        found = exercises.measures(ranks)
        names = ("repeated-forward", "small-messages", "synchronization")
        assert tuple(found[name] for name in names) == counts, case


def test_the_reading_of_case_1_is_inside_the_step(tmp_path):
    launch.run(
        SCRIPT, "--case", 1, "--steps", 2, "--out", tmp_path, ranks=2, show=False, timeout=200
    )
    (spans,) = chrome_trace.read([tmp_path / "case_1_rank_0.json"])
    reads = [span for span in spans if span.name == "read batch"]
    assert len(reads) == 2 and all(read.duration >= 60 for read in reads)  # it waits 60 ms


def test_horovod_writes_its_timeline_of_the_same_training(tmp_path):
    path = tmp_path / "timeline.json"
    variables = {"HOROVOD_TIMELINE": str(path), "HOROVOD_CACHE_CAPACITY": "0"}
    launch.run(
        SCRIPT,
        "--horovod",
        "--steps",
        1,
        "--out",
        tmp_path,
        ranks=2,
        show=False,
        timeout=200,
        **variables,
    )
    table = horovod_timeline.read(path)
    assert table["tensor"].nunique() == GRADIENTS
    assert {"ready 0", "ready 1", "negotiate"} <= set(table["phase"])
