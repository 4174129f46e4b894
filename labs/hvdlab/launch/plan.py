"""What will be started, before anything is: the command and the variables that it needs.

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
from hvdlab.launch.local import LaunchError
from hvdlab.system import slurm_job
from hvdlab.system.hardware import gpus

LAUNCHERS = {"mpirun": mpirun, "torchrun": torchrun, "srun": srun}
ALWAYS = {
    "PYTHONUNBUFFERED": "1",  # lines arrive when they are printed
    "PYTHONFAULTHANDLER": "1",  # a crash shows the line of the script
    # A rank that waits says for whom, and gives up: by itself Horovod waits for ever.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "30",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "120",
}


@dataclass(frozen=True)
class Plan:
    """A launch: `variables` are only those that differ from the environment of the user."""

    launcher: str
    ranks: int
    command: list[str]
    variables: dict[str, str]
    hosts: list[Host]  # empty when all ranks start on this machine

    def line(self) -> str:
        """The one line that does the same when it is pasted into a shell."""
        variables = dict(self.variables)
        # The old PATH is in the shell already.
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
    """How `ranks` ranks of a script are started from here.

    Args:
        launcher: one of LAUNCHERS.
        hosts: such as "host1:2,host2:2"; default: this machine, or the nodes that Slurm gave.
        hostfile: a file with lines such as `host1 slots=2`, instead of `hosts`.

    Raises:
        LaunchError: hosts that cannot be understood, too many ranks for them, or what this launcher
            cannot start.
    """
    if ranks < 1:
        raise LaunchError(f"-np: expected at least 1 rank, got {ranks}.")
    if hosts and hostfile:
        raise LaunchError("-H and --hostfile both name the hosts: give one of them.")
    named = hosts_of.parse_list(hosts) if hosts else []
    named = hosts_of.parse_file(hostfile) if hostfile else named
    slots = [host.slots for host in named] or slurm_job.tasks_on_nodes()
    if launcher == "torchrun" and not named:
        # It takes no slots: one task a node, with all of its cores, is usual for it.
        slots = [ranks for _ in slots]
    if slots and ranks > sum(slots):
        who = "the hosts have" if named else "the Slurm allocation has"
        raise LaunchError(
            f"{ranks} ranks, but {who} room for {sum(slots)}: start no more, or ask for more room."
        )
    together = min(ranks, max(slots, default=ranks))  # on one host
    if named and all(hosts_of.is_here(host.name) for host in named):
        named, slots = [], []  # this machine by another name

    wanted = {**local.environment(together), **ALWAYS}
    if not named and (
        cpus := slurm_job.cpus_on_nodes()
    ):  # salloc's shell may be on another machine
        threads = str(max(1, min(cpus) // together))
        wanted |= {"OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads}
    if gpus():
        wanted["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # nvidia-smi's numbers, the same on every rank
    start = LAUNCHERS[launcher].start
    if named or len(slots) > 1:  # on one machine the ranks find a name that they share
        wanted["HVDLAB_RUN_DIR"] = time.strftime("runs/%Y%m%d-%H%M%S")
    command, wanted = start(ranks, str(script), arguments, wanted, named, slots)
    variables = {name: value for name, value in wanted.items() if name not in os.environ}
    if not _is_first(wanted["PATH"], command[0]):
        variables["PATH"] = wanted["PATH"]
    return Plan(launcher, ranks, command, variables, named)


def _is_first(path, program):
    """Whether the user's PATH finds the same programs already."""
    return all(shutil.which(name) == shutil.which(name, path=path) for name in (program, "python"))
