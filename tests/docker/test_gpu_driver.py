"""The build of torch that gpu_driver.py chooses for a driver and its GPUs. A script stands for nvidia-smi."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[2] / "docker" / "gpu_driver.py"
CPU, CUDA12, PYPI = (
    "https://download.pytorch.org/whl/cpu",
    "https://download.pytorch.org/whl/cu126",
    "''",
)


def chosen(folder: Path, rows: str | None, **variables) -> tuple[str, str]:
    """Return (index, sentence) as setup.sh reads them.

    `rows` is the script of nvidia-smi; None: no nvidia-smi.
    """
    if rows is not None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{rows}\n")
        (folder / "nvidia-smi").chmod(0o755)
    answer = subprocess.run(
        [sys.executable, DRIVER],
        env={**os.environ, "PATH": f"{folder}:/bin"} | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert answer.stderr == ""
    index, sentence = answer.stdout.splitlines()
    return index.removeprefix("driver_index="), sentence.removeprefix("driver_says=")


@pytest.mark.parametrize(
    ("rows", "index", "says"),
    [
        ("echo 580.65.06, 9.0", PYPI, "torch for CUDA 13"),
        ("echo 580.65.06, 7.5; echo 580.65.06, 12.0", PYPI, "capability 7.5"),
        ("echo 581.29, 12.0", PYPI, "driver 581"),  # WSL 2 reports the driver of Windows
        ("echo 580.65.06, 7.0", CUDA12, "CUDA 13 needs driver 580 and compute capability 7.5"),
        ("echo 580.65.06, 9.0; echo 580.65.06, 7.0", CUDA12, "capability 7.0"),
        ("echo 575.57.08, 9.0", CUDA12, "driver 575"),
        ("echo 525.60.13, 5.0", CUDA12, "driver 525"),
        ("echo 570.86.10, 12.0", CPU, "need torch for CUDA 13, and that needs driver 580"),
        ("echo 580.65.06, 12.0; echo 580.65.06, 7.0", CPU, "no single build of torch supports"),
        ("echo 470.57.02, 8.0", CPU, "torch needs driver 525 for CUDA 12"),
        ("echo 580.65.06, 3.7", CPU, "no build of torch supports this GPU"),
        ("echo NVIDIA-SMI has failed; exit 9", CPU, "does not answer"),
        ("echo '[N/A], [N/A]'", CPU, "does not answer"),
        ("true", CPU, "''"),  # a driver without a GPU
    ],
)
def test_build_of_torch_by_driver_and_gpu(rows, index, says, tmp_path):
    index_, sentence = chosen(tmp_path, rows)
    assert index_ == index and says in sentence
    assert index != CPU or says == "''" or "torch for processors is installed" in sentence


def test_queries_driver_version_and_compute_capability(tmp_path):
    """The real nvidia-smi supports only certain queries."""
    script = f'echo "$@" > {tmp_path}/asked; echo 580.65.06, 9.0'
    chosen(tmp_path, script)
    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]


def test_finds_nvidia_smi_of_wsl_and_of_containers(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import gpu_driver as g; "
        "print('/usr/lib/wsl/lib' in g.DRIVER_PROGRAMS.split(':')); "
        "g.DRIVER_PROGRAMS = sys.argv[2]; print(g.ask())"
    )
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 581.29, 8.9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    answer = subprocess.run(
        [sys.executable, "-c", code, DRIVER.parent, tmp_path],
        env={**os.environ, "PATH": "/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert answer.stdout.split("\n")[:2] == ["True", "[(581, (8, 9))]"]
