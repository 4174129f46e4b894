"""Look for GPUs that PyTorch can use, and for what the parts need, before any part runs."""

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
    """The GPUs of this machine.

    Attributes:
        names: of the GPUs that PyTorch can use.
        no_gpu: why PyTorch can use no GPU; "" if it can use one.
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
    """Return the GPUs that PyTorch can use; a new process imports PyTorch and reports them."""
    if not find_spec("torch"):
        return Machine(no_gpu="PyTorch is not installed")
    try:
        asked = [sys.executable, "-c", ASK_TORCH]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True)
        version, cuda, names = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return Machine(no_gpu=f"PyTorch cannot be imported ({lines[-1] if lines else error})")
    if names:
        return Machine(tuple(names))
    listed = gpus()
    if not listed:
        return Machine(no_gpu="nvidia-smi lists none that a program started here may use")
    build = f"is built for CUDA {cuda}" if cuda else "is a build without CUDA"
    return Machine(
        no_gpu=f"nvidia-smi lists {listed}, but PyTorch {version} {build} and can use none"
    )


# --- needs of the parts: name -> a function that returns what is missing, or "" ----------------------


def _package(name: str, how: str) -> Callable[[Machine], str]:
    return lambda _: "" if find_spec(name) else f"{name} is not installed: {how}"


def _file(path: str) -> Callable[[Machine], str]:
    missing = f"{path} does not exist: run the command in a checkout of the course"
    return lambda _: "" if (CHECKOUT / path).exists() else missing


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
    """Return why the first need that is not met is missing, one sentence; "" if all needs are met."""
    return next((why for need in needs if (why := NEEDS[need](machine))), "")
