"""Checks before a launch. Each raises a LaunchError with one sentence about what cannot work."""

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from hvdlab.launch import hosts
from hvdlab.launch.launchers.launcher import mpi_of
from hvdlab.launch.local import LaunchError
from hvdlab.launch.plan import Plan
from hvdlab.system import open_mpi, slurm_job
from hvdlab.system.rank_limit import too_many_ranks


def must_work(planned: Plan, script: str, force: bool = False) -> None:
    """Check that the launcher fits this machine and the script, and that the other hosts can be reached.

    Args:
        planned: the launch.
        script: the Python file.
        force: whether more ranks may start than this machine has room for. Default: False.

    Raises:
        LaunchError: something cannot work.
    """
    sentence = "" if force else too_many_ranks(ranks_here(planned))
    if sentence:
        raise LaunchError(sentence)
    {
        "mpirun": lambda _: mpirun_must_fit(),
        "torchrun": torchrun_must_fit,
        "srun": srun_must_fit,
    }[planned.launcher](script)
    if planned.launcher == "mpirun" and not planned.hosts:
        nodes_must_be_reachable(script)
    hosts.must_be_ready(planned.hosts, script)


def ranks_here(planned: Plan) -> int:
    """Return how many ranks of a launch may start on this machine; 0 if Slurm chooses the nodes."""
    if planned.hosts:
        here = (host.slots for host in planned.hosts if hosts.is_here(host.name))
        return min(planned.ranks, sum(here))
    return planned.ranks if planned.launcher == "torchrun" or not slurm_job.nodes() else 0


def ranks_come_first(arguments: list[str]) -> None:
    """Check that -np is not among the arguments of the script.

    Raises:
        LaunchError: -np comes after the script.
    """
    if "-np" in arguments:
        raise LaunchError(
            "-np comes after the script: write it before the script, as in `-np 4 train.py`."
        )


def mpirun_must_fit() -> None:
    """Check that there is an mpirun, of the MPI for which Horovod was built.

    Raises:
        LaunchError: there is none, it does not work, or it belongs to another MPI.
    """
    if not (mpirun := _found("mpirun")):
        raise LaunchError("there is no mpirun here: `hvdlab doctor` says how to install one.")
    wanted = horovod_mpi()
    if wanted == "none":
        raise LaunchError(
            "Horovod was built without MPI, so mpirun would start separate runs of one rank each: `hvdlab "
            "doctor` says how to build it with MPI."
        )
    found = _kind(mpirun)
    if wanted and wanted != found:
        raise LaunchError(
            f"Horovod was built for {wanted}, but {mpirun} belongs to {found}, so every rank would train "
            f"separately: put the mpirun of {wanted} first in PATH."
        )


def nodes_must_be_reachable(script: str) -> None:
    """Check that mpirun can start ranks on all nodes of the Slurm allocation. Without one, there are none.

    It starts them with srun and, where there is no srun, with ssh.

    Raises:
        LaunchError: there is neither srun nor ssh, or a node cannot be reached with ssh.
    """
    nodes = slurm_job.nodes()
    others = [hosts.Host(name, 1) for name in nodes if not hosts.is_here(name)]
    if not others or _found("srun"):
        return
    if not _found(hosts.ssh_agent()[0]):
        raise LaunchError(
            f"the Slurm allocation has {len(nodes)} nodes ({', '.join(nodes)}), and mpirun cannot reach the "
            "others, because there is neither srun nor ssh here (in a container?): install one of them here, "
            "or ask for a single node, as in `salloc --nodes=1 --ntasks=2`."
        )
    hosts.must_be_ready(others, script)


def torchrun_must_fit(script: str) -> None:
    """Check that there is a torchrun, and that the script does not need mpirun.

    Raises:
        LaunchError: there is none, or the ranks of the script would not find each other.
    """
    if not _found("torchrun"):
        raise LaunchError(
            "there is no torchrun here: it comes with PyTorch, and `hvdlab doctor` says how to install that."
        )
    if library := mpi_of(script):
        raise LaunchError(
            f"{script} uses {library}, whose ranks find each other only if mpirun starts them: with "
            "torchrun each rank would train separately. Leave out `--launcher torchrun`."
        )


def srun_must_fit(script: str) -> None:
    """Check that there is an srun, and that Slurm has PMIx if the script needs it.

    Raises:
        LaunchError: there is none, or the ranks of the script would not find each other.
    """
    if not _found("srun"):
        raise LaunchError("there is no srun here: on a Slurm cluster it is on every node.")
    if not (library := mpi_of(script)):
        return
    trial = ["srun", "--mpi=pmix", "-n", "1", "true"]
    try:
        answer = subprocess.run(
            trial, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        error = answer.stderr if answer.returncode else ""
        failed = answer.returncode != 0
    except subprocess.TimeoutExpired:
        error, failed = "no answer within 60 s", True
    if why := re.search(r"pmi/pmix: (.+)|(Invalid MPI type .+?),", error):
        raise LaunchError(
            f"{script} uses {library}, whose ranks srun can only start if Slurm has PMIx, but here "
            f"`{' '.join(trial)}` fails ({why[1] or why[2]}). Leave out `--launcher srun`: mpirun uses the "
            "same nodes."
        )
    if failed:
        first = next(iter(error.strip().splitlines()), "it printed no reason")
        raise LaunchError(f"srun cannot start a rank here: `{' '.join(trial)}` fails ({first}).")


def _found(program: str) -> str | None:
    return shutil.which(program, path=open_mpi.search_path())


def _kind(mpirun: str) -> str:
    """Return the MPI of an mpirun. Raise LaunchError if it cannot be run."""
    text, error = open_mpi.version(mpirun)
    if error:
        raise LaunchError(f"{mpirun} does not work ({error}): `hvdlab doctor` says what to do.")
    if "Open MPI" in text or "OpenRTE" in text:
        return "Open MPI"
    return "MPICH" if re.search("MPICH|HYDRA|Intel", text) else "an unknown MPI"


def horovod_mpi() -> str | None:
    """Return the MPI that Horovod's libraries need: "Open MPI", "MPICH", or "none"; None without Horovod.

    It is read from the library files, because importing a framework would take seconds.
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
    # MPICH and the libraries derived from it (Intel MPI, MVAPICH) share the ABI version 12.
    return (
        "MPICH" if any(b"mpich" in name or name.endswith(b".12") for name in names) else "Open MPI"
    )
