"""Error messages of the training scripts of labs 5, 8 and 12 for missing data and bad arguments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LABS = Path(__file__).parents[2] / "labs"


SCRIPTS = [f"fashion_mnist_{name}.py" for name in ("torch", "keras", "ddp", "elastic")]
SCRIPTS += ["cifar10_torch.py", "cifar10_keras.py"]


def start(script, *arguments, **variables):
    pytest.importorskip("tensorflow" if "keras" in str(script) else "torch")
    if script not in ("fashion_mnist_torch.py", "fashion_mnist_keras.py", "fashion_mnist_ddp.py"):
        pytest.importorskip("horovod")
    command = [sys.executable, LABS / script, *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def quick(*names):
    """Return the scripts as parameters; those of `names` that import TensorFlow only run if asked for."""
    return [
        pytest.param(name, marks=pytest.mark.thorough if "keras" in name else ()) for name in names
    ]


@pytest.mark.parametrize("script", quick(*SCRIPTS))
def test_reports_missing_data_in_one_sentence(script, tmp_path):
    ended = start(script, HVDLAB_DATA=str(tmp_path / "none"))
    assert ended.returncode == 1 and not ended.stdout
    *noise, said = ended.stderr.splitlines()  # TensorFlow writes to stderr
    assert said.startswith(f"{script}: No {script.rpartition('_')[0]} data in {tmp_path}")
    assert not any("Traceback" in line for line in noise)


@pytest.mark.parametrize("script", quick(*SCRIPTS[:4]))
def test_refuses_a_momentum_that_keras_does_not_accept(script):
    ended = start(script, "--momentum", "1.5")
    assert ended.returncode == 2
    assert ended.stderr.endswith("argument --momentum: expected 0 to 1, got 1.5\n")


@pytest.mark.parametrize("script", quick("cifar10_torch.py", "cifar10_keras.py"))
def test_refuses_a_warmup_as_long_as_the_run(script):
    ended = start(script, "--epochs", "2", "--warmup", "2")
    assert ended.returncode == 2
    assert ended.stderr.endswith("argument --warmup: expected less than --epochs 2, got 2\n")


@pytest.mark.slow
@pytest.mark.parametrize(  # the scripts divide by it
    "folder", [pytest.param("torch", marks=pytest.mark.thorough), "solutions/torch"]
)
def test_the_assessment_trains_without_warmup(folder, sample_folder):
    script = LABS.parent / "assessment" / folder / "assessment.py"
    ended = start(script, "--warmup", "0", "--epochs", "1", HVDLAB_DATA=str(sample_folder))
    assert ended.returncode == 0, ended.stderr[-2000:]
