"""The lines of a training run and the times of its parts, compared with texts and numbers written by hand."""

import math

from hvdlab.course import training_runs

OUTPUT = """\
WARNING: a library has something to say about epoch 7
epoch 0  loss 1.323  train 0.613  held-out 0.601  19.2 s
epoch 12  loss nan  train 0.100  held-out 0.100  101.5 s
lars, seed 2: target reached after epoch 3, 74.6 s
"""


def test_only_the_lines_of_epochs_become_rows():
    first, second = training_runs.epoch_rows(OUTPUT)
    assert first == {
        "epoch": 0, "loss": 1.323, "train_accuracy": 0.613, "heldout_accuracy": 0.601, "seconds": 19.2
    }  # fmt: skip
    assert second["epoch"] == 12 and math.isnan(second["loss"]) and second["seconds"] == 101.5
    assert training_runs.epoch_rows("mpirun: nothing happened\n") == []


def test_marks_begin_with_the_start_up_at_the_launch(tmp_path, monkeypatch):
    now = iter([106.0, 107.5, 109.0])
    monkeypatch.setattr(training_runs.time, "time", lambda: next(now))
    times = training_runs.PartTimes()
    for part in ("reading", "compute", "end"):
        times.begin(part)
    times.save(tmp_path / "times.json")
    assert training_runs.read_marks(tmp_path / "times.json", launched=100.0) == [
        ("start-up", 0.0),
        ("reading", 6.0),
        ("compute", 7.5),
        ("end", 9.0),
    ]
