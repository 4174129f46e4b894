"""The files of this host that only a run with GPUs may use: device files and the pipes of CUDA's daemon.

A run without GPUs sees none of these. CUDA_VISIBLE_DEVICES hides the GPUs from the frameworks, and without
the device files no program can access them.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from hvdgrade.sandbox.mounts import shareable
from hvdlab.system.hardware import visible_gpus

DEVICES = Path("/dev")
PATTERNS = ("nvidia*", "dxg")  # with the folder nvidia-caps of MIG; dxg is the GPU of WSL 2
# Every process that computes on a GPU needs these device files.
NEEDED = re.compile(r".*/(nvidia([0-9]+|ctl|-uvm)|dxg)")
# Names the folder with the pipes of CUDA's MPS daemon, which lets processes share a GPU.
MPS = "CUDA_MPS_PIPE_DIRECTORY"
# Which GPUs are visible, and in which order they are numbered. A batch divides the GPUs among its graders.
CHOICE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def device_files() -> list[str]:
    """Return the device files of this machine's GPUs, and the folders that hold such files."""
    return sorted(str(path) for pattern in PATTERNS for path in DEVICES.glob(pattern))


def writable() -> list[str]:
    """Return the paths of the host that a run with GPUs may read and write."""
    pipes = os.environ.get(MPS, "")
    return [*device_files(), *([pipes] if shareable(pipes) else [])]


def shared_in_proc() -> list[str]:
    """Return what in /proc does not belong to one process: folders, and files that somebody may write to.

    The start of CUDA writes the names of its threads to /proc/PID/task/TID/comm, according to
    https://github.com/nolabs-ai/nono/pull/673 since driver 570, and ends with error 304 if it cannot.
    """
    found = []
    for path in Path("/proc").iterdir():
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue  # a process that has ended
        if not path.name.isdigit() and (stat.S_ISDIR(mode) or stat.S_ISREG(mode) and mode & 0o222):
            found.append(str(path))
    return sorted(found)


def variables(gpus: bool, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that show a run the GPUs that the grader sees, or none."""
    if not gpus:
        return {"CUDA_VISIBLE_DEVICES": "-1"}
    # An empty value of CUDA_VISIBLE_DEVICES means no GPU, so it must be kept. Without the variable, the run
    # would see all GPUs.
    return {name: environment[name] for name in (*CHOICE, MPS) if name in environment}


def closed(user: int | None) -> list[str]:
    """Return the GPU device files that a submission needs but cannot open.

    Args:
        user: the user id of the submission, which then has no groups; None if it runs as the grader's user.
    """
    files = filter(NEEDED.fullmatch, device_files())
    if user is None:
        return [path for path in files if not os.access(path, os.R_OK | os.W_OK)]
    return [path for path in files if os.stat(path).st_mode & 0o006 != 0o006]


def why_closed(user: int | None) -> str:
    """Return a sentence about GPU files that a submission cannot open and what to do; "" if none."""
    files = closed(user) if visible_gpus() else []
    if not files:
        return ""
    return (
        f"a submission cannot open {', '.join(files)}, because only a group or root may. Let every user "
        "open them, for example with the option NVreg_DeviceFileMode=0666 of the kernel module nvidia"
    )
