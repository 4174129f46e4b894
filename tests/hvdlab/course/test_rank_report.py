"""The rank report on recorded runs written by the test: hash, overlap, spread, and missing epochs."""

import numpy as np
import pytest

from hvdlab.course.rank_report import curve, digest, rank_report, summary, text
from hvdlab.record import RunRecord


def write(folder, rank, weights, read, epoch=0, **values):
    RunRecord(folder, rank).write(
        epoch, lambda file: np.savez(file, examples_read=np.array(read), **weights), **values
    )


@pytest.fixture
def weights():
    return {"dense/kernel": np.arange(6.0).reshape(2, 3), "norm2.running_mean": np.zeros(3)}


def test_two_ranks_side_by_side(tmp_path, weights):
    write(tmp_path, 0, weights, [0, 1, 2, 3], steps=2, loss=1.5, accuracy=0.25)
    other = {**weights, "dense/kernel": weights["dense/kernel"] + 1e-7}
    write(tmp_path, 1, other, [2, 3, 4, 5], steps=2, loss=1.0, accuracy=0.5)
    report = rank_report(tmp_path)
    assert report.loc[0, "weights"] != report.loc[1, "weights"]
    assert report["overlap"].tolist() == [1.0, 0.5]
    assert report["examples"].tolist() == [4, 4]
    assert summary(report) == {"ranks": 2, "models": 2, "overlap": 0.5, "spread": 0.5}
    assert "50%" in text(report)


def test_ranks_of_one_model_agree(tmp_path, weights):
    write(tmp_path, 0, weights, [0, 1], loss=1.0)
    # Its own batch-norm statistics make no other model.
    write(tmp_path, 1, {**weights, "norm2.running_mean": np.ones(3)}, [2, 3], loss=1.0)
    assert summary(rank_report(tmp_path)) == {"ranks": 2, "models": 1, "overlap": 0, "spread": 0}


def test_held_out_accuracy_comes_before_that_of_training(tmp_path, weights):
    write(tmp_path, 0, weights, [0], accuracy=0.9, val_accuracy=0.7)
    assert rank_report(tmp_path)["accuracy"].tolist() == [0.7]


def test_the_latest_epoch_that_all_ranks_have(tmp_path, weights):
    for epoch in range(3):
        write(tmp_path, 0, weights, [0], epoch, loss=1 / (1 + epoch))
    write(tmp_path, 1, weights, [0], 0, loss=1.0)
    assert summary(rank_report(tmp_path))["spread"] == 0
    assert curve(tmp_path)["loss"].tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    with pytest.raises(FileNotFoundError, match="epoch 2 was not recorded by all of its 2 ranks"):
        rank_report(tmp_path, epoch=2)


def test_the_line_is_that_of_the_epoch_also_after_a_restart(tmp_path, weights):
    write(tmp_path, 0, weights, [0], 0, loss=3.0)
    write(tmp_path, 0, weights, [0], 0, loss=1.0)
    assert rank_report(tmp_path)["loss"].tolist() == [1.0]


def test_nothing_recorded_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no epoch was recorded by all of its 0 ranks"):
        rank_report(tmp_path)


def test_the_hash_changes_with_any_trained_weight(weights):
    kernel = weights["dense/kernel"]
    assert digest({"loaded/kernel": kernel, "bn/moving_variance": np.ones(1)}) == digest(weights)
    assert digest({**weights, "dense/bias": np.ones(1)}) != digest(weights)
    assert digest({"dense/kernel": kernel.T}) != digest({"dense/kernel": kernel})
