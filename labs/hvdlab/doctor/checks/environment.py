"""What the shell and the site bring: root, variables, a container, Slurm, the data sets."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hvdlab.doctor.answers import FAILURE, OK, WARNING, Answer, counted, quoted
from hvdlab.system.command_name import hvdlab

ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
MORE_TASKS = "salloc --ntasks=2"
# With another value than "mpi", ranks that mpirun has started abort or crash.
CONTROLLERS = ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS")


def root(said) -> Answer:
    if os.geteuid():
        return Answer(OK, "you are not root")
    if all(os.environ.get(name) == "1" for name in ROOT_VARIABLES):
        return Answer(OK, "you are root, and Open MPI is told to accept it")
    text = "you are root: a plain mpirun refuses to start (`hvdlab run` tells it to accept that)"
    return Answer(WARNING, text, f"export {' '.join(f'{name}=1' for name in ROOT_VARIABLES)}")


def threads(said) -> Answer:
    """Numbers of threads that the user fixed: times two ranks, do they fit the cores?"""
    cores = len(os.sched_getaffinity(0))
    fixed = {name: os.environ[name] for name in THREADS if os.environ.get(name)}
    if not fixed:
        return Answer(OK, "no variable fixes them: `hvdlab run` deals the cores out")
    for name, value in fixed.items():
        if not value.isdecimal() or int(value) < 1:
            text = f"{name}={value} is no number of threads"
            return Answer(WARNING, text, f"unset {name}")
        if name != "TF_NUM_INTEROP_THREADS" and 2 * int(value) > max(2, cores):
            text = f"{name}={value}: two ranks with so many each, on {counted(cores, 'core')}"
            return Answer(WARNING, text, f"unset {name}")
    return Answer(OK, ", ".join(f"{name}={value}" for name, value in fixed.items()))


def variables(said) -> Answer:
    """Settings of Horovod and Open MPI that the user's environment brings."""
    set_here = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("HOROVOD_", "OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_"))
    }
    for name in CONTROLLERS:
        if set_here.get(name, "mpi").lower() != "mpi":
            text = f"{name}={set_here[name]}: ranks that mpirun starts abort or crash with it"
            return Answer(WARNING, text, f"unset {name}")
    return Answer(OK, ", ".join(f"{n}={v}" for n, v in set_here.items()) or "none is set")


def container(said) -> Answer:
    return Answer(OK, container_name() or "not inside one")


def container_name() -> str:
    """docker, podman, apptainer, Kubernetes or "" (not inside a container)."""
    if os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "docker" if Path("/.dockerenv").exists() else ""


def slurm(said) -> Answer:
    job, tasks = os.environ.get("SLURM_JOB_ID"), slurm_tasks()
    if job:
        nodes = int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
        text = f"job {job} on {counted(nodes, 'node')}, {os.environ.get('SLURM_JOB_NODELIST', '?')}"
        if tasks:
            text += f": {counted(tasks, 'task')}"
        if tasks == 1:
            return Answer(WARNING, f"{text}, so mpirun has one slot", MORE_TASKS)
        return Answer(OK, text)
    if shutil.which("srun"):
        return Answer(OK, "srun is here; not inside an allocation, so ranks run on this machine")
    return Answer(OK, "none")


def slurm_tasks() -> int:
    """Tasks of the allocation that this is in; 0 outside of one."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    return int(tasks) if os.environ.get("SLURM_JOB_ID") and tasks.isdecimal() else 0


def data(said) -> Answer:
    """CIFAR-10 and Fashion-MNIST, read whole."""
    found = said["data"].answer()
    if not found:
        return Answer(FAILURE, f"cannot be looked for: {said['data'].last_words()}")
    seen = []
    for name, one in found.items():
        if "error" in one:
            again = f"{hvdlab()} data {name} --or-synthetic"
            if one["broken"]:  # neither a download nor a twin replaces what is there
                away = f"mv {quoted(one['broken'])} {quoted(one['broken'] + '.broken')}"
                return Answer(FAILURE, one["error"], f"{away} && {again}")
            place = os.environ.get("HVDLAB_DATA")
            if place and not Path(place).expanduser().exists():
                text = f"HVDLAB_DATA={place} is not there: {name} is looked for nowhere else"
                return Answer(FAILURE, text, "unset HVDLAB_DATA")
            return Answer(FAILURE, one["error"], again)
        kind = "SYNTHETIC " if one["synthetic"] else ""
        seen.append(f"{kind}{name} in {one['folder']}")
    return Answer(OK, ", ".join(seen))
