"""Checks of the environment: root, environment variables, container, Slurm, data sets."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hvdlab.doctor.answers import FAILURE, OK, WARNING, Answer, ProgramOutput, counted, quoted
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


def root(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that mpirun accepts this user."""
    if os.geteuid():
        return Answer(OK, "you are not root")
    if all(os.environ.get(name) == "1" for name in ROOT_VARIABLES):
        return Answer(OK, "you are root, and Open MPI is set to accept it")
    text = "you are root: a plain mpirun refuses to start (`hvdlab run` sets it to accept root)"
    return Answer(WARNING, text, f"export {' '.join(f'{name}=1' for name in ROOT_VARIABLES)}")


def threads(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that two ranks with the number of threads that the user set fit the cores."""
    cores = len(os.sched_getaffinity(0))
    fixed = {name: os.environ[name] for name in THREADS if os.environ.get(name)}
    if not fixed:
        return Answer(OK, "no variable sets them: `hvdlab run` divides the cores among the ranks")
    for name, value in fixed.items():
        if not value.isdecimal() or int(value) < 1:
            text = f"{name}={value} is not a number of threads"
            return Answer(WARNING, text, f"unset {name}")
        if name != "TF_NUM_INTEROP_THREADS" and 2 * int(value) > max(2, cores):
            text = (
                f"{name}={value}: two ranks with so many threads each, on {counted(cores, 'core')}"
            )
            return Answer(WARNING, text, f"unset {name}")
    return Answer(OK, ", ".join(f"{name}={value}" for name, value in fixed.items()))


def variables(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check the settings of Horovod and Open MPI in the user's environment."""
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


def container(outputs: dict[str, ProgramOutput]) -> Answer:
    """Report whether this is a container."""
    return Answer(OK, container_name() or "not inside one")


def container_name() -> str:
    """Return docker, podman, apptainer, Kubernetes, or "" (not inside a container)."""
    if os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "docker" if Path("/.dockerenv").exists() else ""


def slurm(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that the Slurm allocation has room for two ranks, if there is one."""
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
    """Return the number of tasks of the Slurm allocation; 0 outside of an allocation."""
    tasks = os.environ.get("SLURM_NTASKS", "")
    return int(tasks) if os.environ.get("SLURM_JOB_ID") and tasks.isdecimal() else 0


def data(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that CIFAR-10 and Fashion-MNIST can be read completely."""
    found = outputs["data"].answer()
    if not found:
        return Answer(FAILURE, f"the search for them failed: {outputs['data'].last_words()}")
    seen = []
    for name, one in found.items():
        if "error" in one:
            again = f"{hvdlab()} data {name} --or-synthetic"
            if one["broken"]:  # neither a download nor a synthetic data set replaces existing files
                away = f"mv {quoted(one['broken'])} {quoted(one['broken'] + '.broken')}"
                return Answer(FAILURE, one["error"], f"{away} && {again}")
            place = os.environ.get("HVDLAB_DATA")
            if place and not Path(place).expanduser().exists():
                text = f"HVDLAB_DATA={place} does not exist, and {name} is searched nowhere else"
                return Answer(FAILURE, text, "unset HVDLAB_DATA")
            return Answer(FAILURE, one["error"], again)
        kind = "SYNTHETIC " if one["synthetic"] else ""
        seen.append(f"{kind}{name} in {one['folder']}")
    return Answer(OK, ", ".join(seen))
