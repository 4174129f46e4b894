"""What a run that gets GPUs may use of this host beyond what every run may: device files, and CUDA's daemon.

A run that gets none sees none of these: CUDA_VISIBLE_DEVICES hides GPUs from frameworks, and without the
device files no program can reach them.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from hvdgrade.visible import shareable
from hvdlab.system.hardware import visible_gpus

DEVICES = Path("/dev")
PATTERNS = ("nvidia*", "dxg")  # with the folder nvidia-caps of MIG; dxg is the GPU of WSL 2
NEEDED = re.compile(r".*/(nvidia([0-9]+|ctl|-uvm)|dxg)")  # by every process that computes on a GPU
MPS = "CUDA_MPS_PIPE_DIRECTORY"  # of CUDA's daemon that lets processes share a GPU
# Which GPUs, and by which order they are numbered; a batch divides them among its graders.
CHOICE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def device_files() -> list[str]:
    """The device files of this machine's GPUs, and folders of such files."""
    return sorted(str(path) for pattern in PATTERNS for path in DEVICES.glob(pattern))


def writable() -> list[str]:
    """What of the host a run with GPUs may read and write."""
    pipes = os.environ.get(MPS, "")
    return [*device_files(), *([pipes] if shareable(pipes) else [])]


def variables(gpus: bool, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Which GPUs a run sees: those that the grader sees, or none."""
    if not gpus:
        return {"CUDA_VISIBLE_DEVICES": "-1"}
    # "" is no GPU; without the variable it would be all of them.
    return {name: environment[name] for name in (*CHOICE, MPS) if name in environment}


def closed(user: int | None) -> list[str]:
    """The GPUs' device files that a submission cannot open although there are GPUs.

    Args:
        user: the user id that it gets, without any group; None: it has those of the grader.
    """
    files = filter(NEEDED.fullmatch, device_files())
    if user is None:
        return [path for path in files if not os.access(path, os.R_OK | os.W_OK)]
    return [path for path in files if os.stat(path).st_mode & 0o006 != 0o006]


def why_closed(user: int | None) -> str:
    """One sentence about GPUs that a submission cannot open, and what to do; "" where there are none."""
    files = closed(user) if visible_gpus() else []
    if not files:
        return ""
    return (
        f"a submission cannot open {', '.join(files)}, because only a group or root may. Let every user "
        "open them, for example with the option NVreg_DeviceFileMode=0666 of the kernel module nvidia"
    )
