"""The CIFAR-10 scripts train on two ranks; each optimizer is tested in PyTorch or in Keras."""

import importlib
import json
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hvdlab import launch
from hvdlab.course.training_runs import PARTS

pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")

LABS = Path(__file__).parents[2] / "labs"
IMAGES = SimpleNamespace(
    train_images=np.zeros((256, 32, 32, 3), np.uint8), train_labels=np.zeros(256, np.uint8)
)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "optimizer"),
    [
        ("cifar10_torch.py", "lamb"),
        pytest.param("cifar10_torch.py", "larc", marks=pytest.mark.thorough),
        pytest.param("cifar10_keras.py", "lars", marks=pytest.mark.thorough),
        pytest.param("cifar10_keras.py", "novograd", marks=pytest.mark.thorough),
    ],
)
def test_one_epoch_is_better_than_chance(script, optimizer, cifar10_folder, tmp_path):
    times = ["--times", tmp_path / "times.json"] if script == "cifar10_torch.py" else []
    mpirun, *rest = launch.mpirun_command(
        2, LABS / script, "--optimizer", optimizer, "--epochs", "1", *times
    )
    answer = subprocess.run(
        [mpirun, *rest, "--batch-size", "64", "--images", "6400"],
        env={**os.environ, **launch.environment(2), "HVDLAB_DATA": str(cifar10_folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    (heldout,) = re.findall(r"^epoch 0 .*held-out ([0-9.]+) ", answer.stdout, re.MULTILINE)
    assert float(heldout) > 0.3  # 0.1 is chance
    if times:
        marks = json.loads(times[1].read_text())
        parts, begins = zip(*marks, strict=True)
        assert set(parts) == {*PARTS, "end"} - {"start-up"} and parts[-1] == "end"
        assert parts.count("exchange") == 50  # one per step: 6,400 images in batches of 2 x 64
        assert list(begins) == sorted(begins)
    # The target needs two epochs.
    assert f"{optimizer}, seed 1: target not reached" in answer.stdout


def test_the_keras_script_exchanges_gradients_through_the_device_of_rank_device(monkeypatch):
    """Ranks that share a GPU exchange through host memory."""
    pytest.importorskip("tensorflow")
    from hvdlab.keras.device import RankDevice

    monkeypatch.syspath_prepend(LABS)
    script = importlib.import_module("cifar10_keras")
    monkeypatch.setattr("sys.argv", ["cifar10_keras.py"])
    monkeypatch.setattr(script, "load_cifar10", lambda: IMAGES)
    shared = RankDevice("/physical_device:GPU:0", ranks=2, direct=False)
    monkeypatch.setattr(script, "rank_device", lambda hvd: shared)

    def wrap(optimizer, **options):
        raise InterruptedError(options)

    monkeypatch.setattr(script.hvd, "DistributedOptimizer", wrap)
    with pytest.raises(InterruptedError, match="{'device_dense': 'CPU:0'}"):
        script.main()
