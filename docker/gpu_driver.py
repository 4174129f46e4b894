"""Choose the build of torch that the NVIDIA driver and the GPUs of this machine can run.

    python3 docker/gpu_driver.py     # prints shell assignments; setup.sh evaluates them

PyPI's torch is built for CUDA 13, which needs driver 580 and compute capability 7.5 (Turing). Older drivers
and GPUs, such as V100 and P100, need a build for CUDA 12. With a build that does not fit, torch sees no GPU
and trains on the CPU. Standard library only, because nothing is installed yet.
"""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA12_INDEX = "https://download.pytorch.org/whl/cu126"
DRIVER_PROGRAMS = "/usr/lib/wsl/lib:/usr/local/nvidia/bin"  # of WSL 2 and of some containers
PIP_DEFAULT = ""  # pip's default index: PyPI's build for CUDA 13
# Minimum driver and compute capability. Sources: CUDA 13.0 release notes, "CUDA Toolkit Major Component
# Versions" (580) and the architectures of PyPI's torch 2.13 (sm_75 to sm_120); CUDA 12 minor version
# compatibility (525) and PyTorch's RELEASE.md, "CUDA Support Matrix" (cu126: 5.0 to 9.0).
CUDA13 = (580, (7, 5))
CUDA12 = (525, (5, 0))
CUDA12_NEWEST = (9, 0)


@dataclass(frozen=True)
class Choice:
    """A build of torch.

    Attributes:
        index: package index of torch.
        sentence: the reason for the user; may be empty.
    """

    index: str
    sentence: str = ""


def choose(gpus: list[tuple[int, tuple[int, int]]]) -> Choice:
    """Return the build of torch for GPUs.

    Args:
        gpus: (major version of the driver, compute capability) of each GPU. All GPUs of a machine have the
            same driver. The lowest capability decides, so that each rank can use its GPU.
    """
    if not gpus:
        return Choice(CPU_INDEX)
    driver, oldest = gpus[0][0], min(capability for _, capability in gpus)
    named = f"NVIDIA driver {driver}, compute capability {oldest[0]}.{oldest[1]}"
    if driver >= CUDA13[0] and oldest >= CUDA13[1]:
        return Choice(PIP_DEFAULT, f"{named}: torch for CUDA 13")
    newest = max(capability for _, capability in gpus)
    if driver >= CUDA12[0] and CUDA12[1] <= oldest and newest <= CUDA12_NEWEST:
        return Choice(
            CUDA12_INDEX,
            f"{named}: torch for CUDA 12, because CUDA 13 needs driver 580 and compute capability 7.5",
        )
    if oldest < CUDA12[1]:
        why = "no build of torch supports this GPU"
    elif newest > CUDA12_NEWEST and driver >= CUDA13[0]:
        why = (
            f"no single build of torch supports these GPUs ({oldest[0]}.{oldest[1]} to "
            f"{newest[0]}.{newest[1]}): for one kind of them name TORCH_INDEX, and hide the "
            "others with CUDA_VISIBLE_DEVICES"
        )
    elif newest > CUDA12_NEWEST:
        why = "these GPUs need torch for CUDA 13, and that needs driver 580: update the driver"
    else:
        why = "torch needs driver 525 for CUDA 12 and 580 for CUDA 13: update the driver"
    return Choice(CPU_INDEX, f"{named}: {why}. torch for processors is installed")


def nvidia_smi() -> str | None:
    """Return the path of nvidia-smi; None without a driver."""
    return shutil.which(
        "nvidia-smi", path=f"{os.environ.get('PATH', os.defpath)}:{DRIVER_PROGRAMS}"
    )


def ask() -> list[tuple[int, tuple[int, int]]]:
    """Return (driver, compute capability) of each GPU, as nvidia-smi reports them; [] without a driver.

    Raises:
        OSError: nvidia-smi is installed but does not answer.
    """
    program = nvidia_smi()
    if not program:
        return []
    query = [program, "--query-gpu=driver_version,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True
        )
        rows = [line.split(",") for line in done.stdout.splitlines() if line.strip()]
        return [
            (int(driver.split(".")[0]), tuple(map(int, capability.strip().split("."))))
            for driver, capability in rows
        ]
    except (ValueError, subprocess.SubprocessError) as error:
        raise OSError(f"{program} is here and does not answer ({error})") from None


def main() -> None:
    try:
        choice = choose(ask())
    except OSError as error:
        choice = Choice(CPU_INDEX, f"{error}: torch for processors is installed")
    print(f"driver_index={shlex.quote(choice.index)}")
    print(f"driver_says={shlex.quote(choice.sentence)}")


if __name__ == "__main__":
    main()
