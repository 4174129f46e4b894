"""What the Fashion-MNIST scripts of labs 4 and 9 say to who has no data."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LABS = Path(__file__).parents[2] / "labs"


@pytest.mark.parametrize("name", ["torch", "keras", "ddp", "elastic"])
def test_without_data_there_is_one_sentence(name, tmp_path):
    pytest.importorskip("keras" if name == "keras" else "torch")
    if name == "elastic":
        pytest.importorskip("horovod")
    ended = subprocess.run(
        [sys.executable, LABS / f"fashion_mnist_{name}.py"],
        env={**os.environ, "HVDLAB_DATA": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1 and not ended.stdout
    *noise, said = ended.stderr.splitlines()  # TensorFlow greets on stderr
    assert said.startswith(f"fashion_mnist_{name}.py: No fashion_mnist data in {tmp_path}")
    assert not any("Traceback" in line for line in noise)
