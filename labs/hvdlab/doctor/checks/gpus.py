"""Checks of the GPUs: whether this user, PyTorch, TensorFlow and Horovod can use them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from hvdlab.doctor.answers import (
    OK,
    PREFIX,
    WARNING,
    Answer,
    ProgramOutput,
    build_horovod,
    counted,
    install,
    quoted,
    set_up,
    sudo,
)

# CUDA of torch -> the oldest driver for it. https://docs.nvidia.com/deploy/cuda-compatibility/
OLDEST_DRIVERS = {12: 525, 13: 580}
PYPI = ""  # its torch is for the newest CUDA
OLDER_CUDA = "https://download.pytorch.org/whl/cu126"
WSL = "/usr/lib/wsl/lib"  # where Windows puts the driver's programs and libraries
FRAMEWORKS = ("torch", "tensorflow")
QUESTION = ["--query-gpu=name,memory.total,driver_version,compute_mode", "--format=csv,noheader"]


class Gpu(NamedTuple):
    """What nvidia-smi reports about a GPU, in the order of QUESTION."""

    name: str
    memory: str
    driver: str
    mode: str = "Default"

    @property
    def driver_branch(self) -> int:
        """The branch of the driver, such as 580 for driver 580.65.06; 0 if it is not a number."""
        return int((re.findall(r"\d+", self.driver) or ["0"])[0])


def found(outputs: dict[str, ProgramOutput]) -> list:
    """Return the GPUs that nvidia-smi lists."""
    if outputs["nvidia-smi"].code != 0:
        return []
    lines = [line.split(", ") for line in outputs["nvidia-smi"].out.splitlines() if line.strip()]
    return [Gpu(*map(str.strip, fields[:4])) for fields in lines if len(fields) > 2]


def gpus(outputs: dict[str, ProgramOutput]) -> Answer:
    """Report the most serious problem that keeps ranks from using the GPUs; else how they will use them."""
    there = found(outputs)
    if not there:
        return _without_nvidia_smi(outputs)
    text = f"{len(there)}: {there[0].name}, {there[0].memory}, driver {there[0].driver}"
    if slices := outputs["nvidia-smi --list-gpus"].out.count("(UUID: MIG-"):
        text += f", divided into {counted(slices, 'MIG slice')}"
    text += ", through WSL 2" if Path("/dev/dxg").exists() else ""
    for problem in (_closed, _hidden, _old_driver, _unseen, _no_kernels, _exclusive, _horovod):
        if answer := problem(outputs, there, text):
            return answer
    text += "; Horovod is built with NCCL"
    if slices:
        text += ", and exchanges between slices through host memory"
    return Answer(OK, text)


def _without_nvidia_smi(outputs: dict[str, ProgramOutput]) -> Answer:
    if answer := _closed(outputs, [], "the driver is loaded"):
        return answer
    if Path(WSL, "nvidia-smi").exists():
        text = f"WSL 2 has a GPU (/dev/dxg), and its nvidia-smi in {WSL} is not on PATH"
        return Answer(WARNING, text, f"export PATH=$PATH:{WSL}")
    if Path("/proc/driver/nvidia/gpus").is_dir():
        text = f"the driver is loaded and nvidia-smi fails: {outputs['nvidia-smi'].last_words()}"
        return Answer(WARNING, text, "nvidia-smi")
    return Answer(OK, "none: the labs run on the cores")


def _closed(outputs: dict[str, ProgramOutput], there: list[Gpu], text: str) -> Answer | None:
    """Report device files that this user cannot open, for example because only the group `video` may."""
    names = re.compile(r"nvidia(\d+|ctl|-uvm)\Z")
    files = [file for file in sorted(Path("/dev").glob("nvidia*")) if names.match(file.name)]
    for file in files:
        if not os.access(str(file), os.R_OK | os.W_OK):
            group = _group(file)
            text += f"; this user may not open {file}, which is for the group {group}"
            join = f"{sudo()}usermod -aG {group} $(id -un)  # then log in again"
            return Answer(WARNING, text, "" if group == "root" else join)
    return None


def _group(file: Path) -> str:
    try:
        return file.group()
    except KeyError:  # as in a container, where the group has no name
        return str(file.stat().st_gid)


def _hidden(outputs: dict[str, ProgramOutput], there: list[Gpu], text: str) -> Answer | None:
    """Report GPUs that $CUDA_VISIBLE_DEVICES hides from programs that are started here."""
    hidden, torch = os.environ.get("CUDA_VISIBLE_DEVICES"), outputs["torch"].answer()
    if hidden is None or not torch or not torch["cuda"] or torch["gpus"] >= len(there):
        return None
    text += f"; CUDA_VISIBLE_DEVICES={hidden!r} leaves {torch['gpus']}"
    if "SLURM_JOB_ID" not in os.environ:
        return Answer(WARNING, text, "unset CUDA_VISIBLE_DEVICES")
    if torch["gpus"]:
        return None  # the other GPUs may belong to other jobs
    return Answer(WARNING, f"{text}, all that this job has", "salloc --ntasks=2 --gpus=2")


def _old_driver(outputs: dict[str, ProgramOutput], there: list[Gpu], text: str) -> Answer | None:
    """Report a driver that is too old for torch. With NVIDIA's compatibility package, torch sees the GPUs."""
    torch = outputs["torch"].answer()
    if not torch or torch["gpus"] or not torch["cuda"]:
        return None
    needed = OLDEST_DRIVERS.get(int(torch["cuda"].split(".")[0]), 0)
    if there[0].driver_branch >= needed:
        return None
    text += f"; torch is built for CUDA {torch['cuda']}, which needs driver {needed} or newer, and sees none"
    if there[0].driver_branch < OLDEST_DRIVERS[12]:
        return Answer(WARNING, f"{text}. Install a newer driver")
    return Answer(
        WARNING, f"{text}. Install a newer driver, or torch for CUDA 12", set_up(OLDER_CUDA)
    )


def _unseen(outputs: dict[str, ProgramOutput], there: list[Gpu], text: str) -> Answer | None:
    torch = outputs["torch"].answer()
    if not torch or torch["gpus"]:
        return None
    if not torch["cuda"]:
        index = PYPI if there[0].driver_branch >= OLDEST_DRIVERS[13] else OLDER_CUDA
        return Answer(
            WARNING, f"{text}; torch is built for the CPU only and sees none", set_up(index)
        )
    words = [line.strip() for line in outputs["torch"].err.splitlines() if "CUDA" in line]
    why = f" ({words[-1][:300]})" if words else ""
    text += f"; torch is built for CUDA {torch['cuda']} and sees none{why}"
    return Answer(WARNING, text, install("--force-reinstall", "torch"))


def _no_kernels(outputs: dict[str, ProgramOutput], there: list[Gpu], text: str) -> Answer | None:
    """Report a GPU that is older or newer than all GPUs for which torch has code."""
    torch = outputs["torch"].answer()
    built = torch.get("architectures", [])
    for capability in map(tuple, torch.get("capabilities", [])):
        if built and not any(runs_on(capability, name) for name in built):
            text += (
                f"; compute capability {'.'.join(map(str, capability))}, and torch is built for "
                f"{', '.join(built)}: its kernels cannot run there"
            )
            newer = all(_capability(name) < capability for name in built)
            return Answer(WARNING, text, set_up(PYPI if newer else OLDER_CUDA))
    return None


def runs_on(capability: tuple, architecture: str) -> bool:
    """Return whether code for an architecture runs on a GPU.

    Machine code (sm) runs on later GPUs of the same generation. PTX (compute) runs on all later GPUs.

    Args:
        capability: of the GPU, such as (9, 0).
        architecture: such as "sm_86" or "compute_90".
    """
    built = _capability(architecture)
    return built <= capability and (architecture.startswith("compute") or built[0] == capability[0])


def _capability(architecture: str) -> tuple:
    """Return the compute capability of an architecture: (8, 6) for "sm_86", (9, 0) for "sm_90a"."""
    major, minor = re.findall(r"(\d+)(\d)", architecture)[0]
    return int(major), int(minor)


def _exclusive(outputs: dict[str, ProgramOutput], there: list[Gpu], text: str) -> Answer | None:
    """Report a compute mode in which two ranks cannot share the GPU."""
    for gpu in there:
        if gpu.mode == "Prohibited" or gpu.mode.startswith("Exclusive") and len(there) == 1:
            text += (
                f"; compute mode {gpu.mode}: a second rank, or a rank next to a notebook that uses the GPU, "
                "ends with an error"
            )
            return Answer(WARNING, text, f"{sudo()}nvidia-smi --compute-mode=DEFAULT")
    return None


def _horovod(outputs: dict[str, ProgramOutput], there: list[Gpu], text: str) -> Answer | None:
    """Report a build of Horovod that cannot exchange tensors on GPUs directly."""
    halves = [
        half for name in FRAMEWORKS if (half := _half(outputs, name)) and _sees(outputs, name)
    ]
    if not halves:
        return Answer(WARNING, f"{text}; Horovod cannot be imported for them", build_horovod())
    if not any(half["nccl"] for half in halves):
        text += (
            "; Horovod is built without NCCL. Scripts that take their device from rank_device exchange "
            "gradients through host memory: the result is right, and the copies take time. Other scripts "
            "that give Horovod a CUDA tensor may read it too early or wait for ever (`hvdlab check` names "
            "them). "
        )
        cuda = str(outputs["torch"].answer().get("cuda") or "")
        if cuda.startswith("12"):  # PyPI has no nvcc for it, see docker/cuda_build.py
            text += (
                "The build with NCCL needs a CUDA 12 toolkit: put its nvcc on PATH, or name its folder in "
                "CUDA_HOME"
            )
        else:
            text += (
                "The build with NCCL needs no CUDA toolkit: it fetches NVIDIA's compiler from PyPI"
            )
        return Answer(WARNING, text, build_horovod(nccl=True))
    if library := outputs["torch"].answer().get("lacks_link_to"):
        link = quoted(PREFIX / "lib" / "libcuda.so")
        text += f"; Horovod opens libcuda.so, and only {library} is here"
        return Answer(WARNING, text, f"ln -s {quoted(library)} {link}")
    return None


def tensorflow(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that TensorFlow sees the GPUs that torch sees. By default TensorFlow does not report it."""
    torch, other = outputs["torch"].answer(), outputs["tensorflow"].answer()
    if not other:
        return Answer(OK, "not tried: TensorFlow cannot be imported")
    if other["gpus"]:
        return Answer(OK, f"TensorFlow sees {other['gpus']}")
    if not torch.get("gpus"):
        return Answer(OK, "none for TensorFlow, and none for torch")
    if os.environ.get("KERAS_BACKEND") == "torch":
        return Answer(OK, "TensorFlow sees none; Keras computes with torch (KERAS_BACKEND=torch)")
    built = other["cuda"]
    why = (
        f"for CUDA {built}, whose libraries it does not find" if built else "for the processor only"
    )
    text = (
        f"torch sees {torch['gpus']}, and TensorFlow none (it is built {why}; it says so only with "
        "TF_CPP_MIN_LOG_LEVEL=0). Keras on TensorFlow trains on the processor. There are three choices: "
        "Keras on torch, with the command below; torch and TensorFlow both for CUDA 12, with `make setup "
        "CUDA=12`; NVIDIA's TensorFlow image"
    )
    return Answer(WARNING, text, "export KERAS_BACKEND=torch")


def _half(outputs: dict[str, ProgramOutput], name: str) -> dict:
    """Return with what Horovod was built for a framework; {} if that cannot be imported."""
    half = outputs[name].answer().get("horovod", {})
    return half if "nccl" in half else {}


def _sees(outputs: dict[str, ProgramOutput], name: str) -> int:
    return outputs[name].answer().get("gpus", 0)


def framework(outputs: dict[str, ProgramOutput]) -> str:
    """Return a framework that sees GPUs and for which Horovod works; "" if there is none."""
    return next((name for name in FRAMEWORKS if _sees(outputs, name) and _half(outputs, name)), "")


def usable_gpus(outputs: dict[str, ProgramOutput]) -> int:
    """Return how many GPUs the ranks can use, with NCCL or through host memory."""
    return _sees(outputs, framework(outputs)) if framework(outputs) else 0
