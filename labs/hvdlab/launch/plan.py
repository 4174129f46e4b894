"""Plan a launch before anything is started: the command, and the environment variables that it needs.

print(plan(2, "train.py", "--epochs", "3").line())
"""

import os
import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from hvdlab.launch import hosts as hosts_of
from hvdlab.launch import local
from hvdlab.launch.hosts import Host
from hvdlab.launch.launchers import mpirun, srun, torchrun
from hvdlab.launch.launchers.launcher import Request
from hvdlab.launch.local import LaunchError
from hvdlab.system import slurm_job
from hvdlab.system.hardware import gpus

LAUNCHERS = {"mpirun": mpirun.LAUNCHER, "torchrun": torchrun.LAUNCHER, "srun": srun.LAUNCHER}
ALWAYS = {
    "PYTHONUNBUFFERED": "1",  # lines arrive when they are printed
    "PYTHONFAULTHANDLER": "1",  # a crash shows the line of the script
    # A waiting rank prints which ranks are missing, and stops waiting. By default Horovod waits for ever.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "30",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "120",
}


@dataclass(frozen=True)
class Plan:
    """How ranks will be started.

    Attributes:
        launcher: a key of LAUNCHERS.
        ranks: number of ranks.
        command: the launcher and its arguments.
        variables: environment variables, only those that the environment of the user does not have.
        hosts: that the user named. It is empty if all ranks start on this machine or Slurm chooses the nodes.
    """

    launcher: str
    ranks: int
    command: list[str]
    variables: dict[str, str]
    hosts: list[Host]

    def line(self) -> str:
        """Return one line for a shell that starts the same ranks."""
        variables = dict(self.variables)
        # The shell already has the old PATH.
        old = os.environ.get("PATH", "")
        path = variables.pop("PATH", None)
        words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        if path:
            words.insert(0, f'PATH={shlex.quote(path.removesuffix(old))}"$PATH"')
        return " ".join([*words, shlex.join(self.command)])


def plan(
    ranks: int,
    script: str | Path,
    *arguments: str,
    launcher: str = "mpirun",
    hosts: str | None = None,
    hostfile: str | Path | None = None,
) -> Plan:
    """Return how to start a script on N ranks.

    Args:
        ranks: number of ranks.
        script: the Python file.
        arguments: of the script.
        launcher: a key of LAUNCHERS. Default "mpirun".
        hosts: such as "host1:2,host2:2". Default: this machine, or the nodes of the Slurm allocation.
        hostfile: a file with lines such as `host1 slots=2`, instead of `hosts`.

    Raises:
        LaunchError: the hosts cannot be parsed or have too few slots, or this launcher cannot start the ranks
            there.
    """
    if ranks < 1:
        raise LaunchError(f"-np: expected at least 1 rank, got {ranks}.")
    if hosts and hostfile:
        raise LaunchError("-H and --hostfile both name the hosts: give one of them.")
    named = hosts_of.parse_list(hosts) if hosts else []
    named = hosts_of.parse_file(hostfile) if hostfile else named
    slots = [host.slots for host in named] or slurm_job.tasks_on_nodes()
    if launcher == "torchrun" and not named:
        # Slots do not limit torchrun: usually it is one task per node, which has all cores of the node.
        slots = [ranks for _ in slots]
    if slots and ranks > sum(slots):
        places = "the hosts have" if named else "the Slurm allocation has"
        raise LaunchError(
            f"{ranks} ranks, but {places} room for {sum(slots)}: start no more, or ask for more room."
        )
    together = min(ranks, max(slots, default=ranks))  # on one host
    if named and all(hosts_of.is_here(host.name) for host in named):
        named, slots = [], []  # all of them are names of this machine

    wanted = {**local.environment(together), **ALWAYS}
    # The shell of salloc may run on another machine than the ranks, so its number of cores does not count.
    if not named and (cpus := slurm_job.cpus_on_nodes()):
        threads = str(max(1, min(cpus) // together))
        wanted |= {"OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads}
    if gpus():
        wanted["CUDA_DEVICE_ORDER"] = (
            "PCI_BUS_ID"  # number the GPUs as nvidia-smi does, on every rank
        )
    if named or len(slots) > 1:  # ranks on one machine find the same name themselves
        wanted["HVDLAB_RUN_DIR"] = time.strftime("runs/%Y%m%d-%H%M%S")
    request = Request(ranks, str(script), arguments, wanted, named, slots)
    command, wanted = LAUNCHERS[launcher].start(request)
    variables = {name: value for name, value in wanted.items() if name not in os.environ}
    if not _is_first(wanted["PATH"], command[0]):
        variables["PATH"] = wanted["PATH"]
    return Plan(launcher, ranks, command, variables, named)


def _is_first(path: str, program: str) -> bool:
    """Return whether the user's PATH already leads to the same launcher and the same Python."""
    return all(shutil.which(name) == shutil.which(name, path=path) for name in (program, "python"))
