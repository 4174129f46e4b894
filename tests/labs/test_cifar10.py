"""The CIFAR-10 scripts train on two ranks, with each optimizer that they offer in one of the two."""

import importlib
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hvdlab import launch

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
        ("cifar10_keras.py", "novograd"),
    ],
)
def test_an_epoch_teaches_something(script, optimizer, cifar10_folder):
    mpirun, *rest = launch.command(2, LABS / script, "--optimizer", optimizer, "--epochs", "1")
    answer = subprocess.run(
        [mpirun, *rest, "--batch-size", "250", "--images", "20000"],
        env={**os.environ, **launch.environment(2), "HVDLAB_DATA": str(cifar10_folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    (heldout,) = re.findall(r"^epoch 0 .*held-out ([0-9.]+) ", answer.stdout, re.MULTILINE)
    assert float(heldout) > 0.3  # 0.1 is chance
    assert f"{optimizer}, seed 1: target not reached" in answer.stdout  # it takes two epochs


@pytest.mark.parametrize("gpus, hidden", [(["GPU:0"], "-1"), (["GPU:0", "GPU:1"], "0,1")])
def test_with_too_few_gpus_keras_computes_as_the_processor_does(gpus, hidden, monkeypatch):
    """`fast_policy` must not look at a GPU that TensorFlow does not use."""
    pytest.importorskip("tensorflow")
    monkeypatch.syspath_prepend(LABS)
    script = importlib.import_module("cifar10_keras")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("sys.argv", ["cifar10_keras.py"])
    monkeypatch.setattr(script, "load_cifar10", lambda: IMAGES)
    monkeypatch.setattr(script.tf.config, "list_physical_devices", lambda kind: gpus)
    monkeypatch.setattr(script.tf.config, "set_visible_devices", lambda devices, kind: None)
    monkeypatch.setattr(script.hvd, "local_size", lambda: 2)

    def network(dtype):
        raise InterruptedError(os.environ["CUDA_VISIBLE_DEVICES"])

    monkeypatch.setattr(script, "AssessmentNet", network)
    with pytest.raises(InterruptedError, match=f"^{hidden}$"):
        script.main()
