"""What this machine has, before any part runs: GPUs that PyTorch can use, and what a part may lack."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hvdlab.system import open_mpi
from hvdlab.system.hardware import gpus

CHECKOUT = Path(__file__).parents[3]
ASK_TORCH = """
import json, torch
cuda = torch.cuda.is_available()
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []
print(json.dumps([torch.__version__, torch.version.cuda or "", names]))
"""


@dataclass(frozen=True)
class Machine:
    """The GPUs here.

    Attributes:
        names: of the GPUs that PyTorch can use.
        no_gpu: why there is none; "" if there is one.
    """

    names: tuple[str, ...] = ()
    no_gpu: str = ""

    @property
    def headline(self) -> str:
        """The first line of the report."""
        if self.names:
            kinds = sorted(set(self.names))
            return f"# GPU report: {', '.join(f'{self.names.count(k)} x {k}' for k in kinds)}"
        return (
            f"**No GPU: {self.no_gpu}. The parts below ran on the processor with tiny sizes. That tests this "
            "command and says nothing about a GPU: do not quote its figures.**"
        )


def look() -> Machine:
    """Ask PyTorch, in a process of its own, which GPUs it can use."""
    if not find_spec("torch"):
        return Machine(no_gpu="PyTorch is not installed")
    try:
        asked = [sys.executable, "-c", ASK_TORCH]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True)
        version, cuda, names = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return Machine(no_gpu=f"PyTorch cannot be imported ({said[-1] if said else error})")
    if names:
        return Machine(tuple(names))
    listed = gpus()
    if not listed:
        return Machine(no_gpu="nvidia-smi lists none that a program started here may use")
    build = f"is built for CUDA {cuda}" if cuda else "is a build without CUDA"
    return Machine(
        no_gpu=f"nvidia-smi lists {listed}, but PyTorch {version} {build} and can use none"
    )


# --- what a part may need: name -> a function that says what is missing, or "" -----------------------


def _package(name: str, how: str) -> Callable[[Machine], str]:
    return lambda _: "" if find_spec(name) else f"{name} is not installed: {how}"


def _file(path: str) -> Callable[[Machine], str]:
    place = CHECKOUT / path
    return lambda _: (
        "" if place.exists() else f"{path} is not there: run it in a checkout of the course"
    )


def _program(name: str, how: str) -> Callable[[Machine], str]:
    return lambda _: (
        "" if shutil.which(name, path=open_mpi.search_path()) else f"no {name} on PATH: {how}"
    )


NEEDS: dict[str, Callable[[Machine], str]] = {
    "torch": _package("torch", "run `make setup`"),
    "horovod": _package("horovod", "run `make setup`"),
    "mpirun": _program("mpirun", "run `make setup`"),
    "several GPUs": lambda machine: "" if len(machine.names) > 1 else "needs at least two GPUs",
    "labs": _file("labs/cifar10_torch.py"),
    "submissions": _file("tests/fixtures/submissions"),
    "tests": _file("tests/hvdlab"),
    "pytest": _package("pytest", "pip install pytest"),
    "hvdgrade": _package("hvdgrade", "run `make setup`"),
}


def missing(needs: tuple[str, ...], machine: Machine) -> str:
    """The first of `needs` that is not met, as a sentence; "" if all are."""
    return next((why for need in needs if (why := NEEDS[need](machine))), "")
