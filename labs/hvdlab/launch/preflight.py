"""What cannot work, said in one sentence before anything is started."""

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from hvdlab.launch import hosts
from hvdlab.launch.launchers.base import mpi_of
from hvdlab.launch.local import LaunchError
from hvdlab.launch.plan import Plan
from hvdlab.system import open_mpi


def must_work(planned: Plan, script: str) -> None:
    """Raise LaunchError for what cannot work on this machine or cannot reach the other hosts."""
    {
        "mpirun": lambda _: mpirun_must_fit(),
        "torchrun": torchrun_must_fit,
        "srun": srun_must_fit,
    }[planned.launcher](script)
    hosts.must_be_ready(planned.hosts, script)


def ranks_come_first(arguments: list[str]) -> None:
    """Raise LaunchError for an -np behind the script, whose arguments these are."""
    if "-np" in arguments:
        raise LaunchError("-np stands behind the script: write it before, as in `-np 4 train.py`.")


def mpirun_must_fit() -> None:
    """Raise LaunchError without an mpirun, or with one of another kind than Horovod was built for."""
    if not (mpirun := _found("mpirun")):
        raise LaunchError("there is no mpirun here: `hvdlab doctor` says how to install one.")
    wanted = horovod_mpi()
    if wanted == "none":
        raise LaunchError(
            "Horovod was built without MPI, so mpirun would start worlds of one rank: `hvdlab doctor` "
            "says how to build it with MPI."
        )
    found = _kind(mpirun)
    if wanted and wanted != found:
        raise LaunchError(
            f"Horovod was built for {wanted}, but {mpirun} is of {found}, so every rank would be alone: put "
            f"the mpirun of {wanted} first in PATH."
        )


def torchrun_must_fit(script: str) -> None:
    """Raise LaunchError without a torchrun, or for a script whose ranks it would leave alone."""
    if not _found("torchrun"):
        raise LaunchError(
            "there is no torchrun here: it comes with PyTorch, and `hvdlab doctor` says how to install that."
        )
    if library := mpi_of(script):
        raise LaunchError(
            f"{script} uses {library}, whose ranks find each other only when mpirun has started them: with "
            "torchrun each would be alone. Leave out `--launcher torchrun`."
        )


def srun_must_fit(script: str) -> None:
    """Raise LaunchError without an srun, or for a script whose ranks it would leave alone."""
    if not _found("srun"):
        raise LaunchError("there is no srun here: on a Slurm cluster it is on every node.")
    if not (library := mpi_of(script)):
        return
    trial = ["srun", "--mpi=pmix", "-n", "1", "true"]
    try:
        answer = subprocess.run(
            trial, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        works, said = answer.returncode == 0, answer.stderr
    except subprocess.TimeoutExpired:
        works, said = False, ""
    if not works:
        why = re.search(r"pmi/pmix: (.+)|(Invalid MPI type .+?),", said)
        raise LaunchError(
            f"{script} uses {library}, whose ranks srun can only start where Slurm has PMIx, and here "
            f"`{' '.join(trial)}` fails{f' ({why[1] or why[2]})' if why else ''}. Leave out `--launcher "
            "srun`: mpirun takes the same nodes."
        )


def _found(program):
    return shutil.which(program, path=open_mpi.search_path())


def _kind(mpirun):
    says = open_mpi.says(mpirun)
    if "Open MPI" in says or "OpenRTE" in says:
        return "Open MPI"
    return "MPICH" if re.search("MPICH|HYDRA|Intel", says) else "an unknown MPI"


def horovod_mpi() -> str | None:
    """The MPI that Horovod's libraries need: "Open MPI", "MPICH", or "none"; None without Horovod.

    Read from the files: importing a framework would take seconds.
    """
    spec = find_spec("horovod")
    libraries = [
        path
        for folder in (spec.submodule_search_locations if spec else None) or []
        for path in Path(folder).glob("*/mpi_lib*.so")
    ]
    if not libraries:
        return None
    names = {
        name for path in libraries for name in re.findall(rb"libmpi\w*\.so\.\d+", path.read_bytes())
    }
    if not names:
        return "none"
    # MPICH and what is made of it (Intel MPI, MVAPICH) share the ABI version 12.
    return (
        "MPICH" if any(b"mpich" in name or name.endswith(b".12") for name in names) else "Open MPI"
    )
