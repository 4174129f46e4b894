"""What will be started, before anything is: the command and the variables that it needs.

    print(plan(2, "train.py", "--epochs", "3").line())

mpirun starts the ranks also inside a Slurm allocation, whose nodes and slots it takes over. `srun`
would need a PMIx library in Slurm that fits Open MPI's; without one it starts N worlds of one rank,
and says nothing.
"""

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from hvdlab import hosts as hosts_of
from hvdlab import launch
from hvdlab.hardware import gpus
from hvdlab.hosts import Host
from hvdlab.launch import LaunchError

ALWAYS = {
    "PYTHONUNBUFFERED": "1",  # lines arrive when they are printed
    "PYTHONFAULTHANDLER": "1",  # a crash shows the line of the script
    # A rank that waits says for whom, and gives up: by itself Horovod waits for ever.
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "30",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "120",
}
# A host that is gone is noticed within 10 + 4 x 5 seconds. By itself Open MPI takes 300 + 9 x 20.
KEEPALIVE = {
    "PRTE_MCA_oob_tcp_keepalive_time": "10",
    "PRTE_MCA_oob_tcp_keepalive_intvl": "5",
    "PRTE_MCA_oob_tcp_keepalive_probes": "4",
}
# What a rank on another host must know too. Open MPI takes its own (OMPI_, PRTE_) there itself.
EXPORTED = (
    "PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHON", "OMP_", "MKL_", "HOROVOD_", "HVDLAB_", "NCCL_",
    "CUDA_", "TF_", "XLA_", "KERAS_", "TORCH", "LAB_",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A launch: `variables` are only those that differ from the environment of the user."""

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
    hosts: str | None = None,
    hostfile: str | Path | None = None,
) -> Plan:
    """How `ranks` ranks of a script are started from here.

    Args:
        hosts: such as "host1:2,host2:2"; default: this machine, or the nodes that Slurm gave.
        hostfile: a file with lines such as `host1 slots=2`, instead of `hosts`.

    Raises:
        LaunchError: hosts that cannot be understood, or too many ranks for them.
    """
    if ranks < 1:
        raise LaunchError(f"-np: expected at least 1 rank, got {ranks}.")
    if hosts and hostfile:
        raise LaunchError("-H and --hostfile both name the hosts: give one of them.")
    named = hosts_of.parse_list(hosts) if hosts else []
    named = hosts_of.parse_file(hostfile) if hostfile else named
    allocated = [] if named else hosts_of.allocated()
    slots = [host.slots for host in named] or allocated
    if slots and ranks > sum(slots):
        who = "the hosts have" if named else "the Slurm allocation has"
        raise LaunchError(
            f"{ranks} ranks, but {who} room for {sum(slots)}: start no more, or ask for more room."
        )
    if all(hosts_of.is_here(host.name) for host in named):
        named = []  # this machine by another name
    together = min(ranks, max(slots, default=ranks))  # on one host

    wanted = {**launch.environment(together), **ALWAYS}
    if allocated or named:  # the slots are known, and no host may be crowded
        wanted.pop("PRTE_MCA_rmaps_default_mapping_policy", None)
    if gpus():
        wanted["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # nvidia-smi's numbers, the same on every rank
    if named:
        wanted |= KEEPALIVE | _interfaces(named)
    variables = {name: value for name, value in wanted.items() if name not in os.environ}
    if not _is_first(wanted["PATH"]):
        variables["PATH"] = wanted["PATH"]

    mpirun, np, count, python, *rest = launch.command(ranks, script, *arguments)
    where = []
    if named:
        python = sys.executable
        where = ["-H", ",".join(f"{host.name}:{host.slots}" for host in named), *_mapping(named)]
    if named or len(allocated) > 1:
        names = sorted({*os.environ, *variables})
        where += [word for name in names if _travels(name) for word in ("-x", name)]
    command = [mpirun, np, count, *where, "--output", "tag", python, *rest]
    return Plan(ranks, command, variables, named)


def _is_first(path):
    """Whether the user's PATH finds the same programs already."""
    return all(shutil.which(name) == shutil.which(name, path=path) for name in ("mpirun", "python"))


def _interfaces(hosts):
    """The network between the hosts, for the ranks and for mpirun itself."""
    if not (one := hosts_of.network(hosts)):
        return {}
    names = {"OMPI_MCA_btl_tcp_if_include": one, "PRTE_MCA_prte_if_include": one}
    opposite = {name: name.replace("include", "exclude") for name in names}
    return {name: one for name in names if opposite[name] not in os.environ}


def _mapping(hosts):
    """So many ranks on each host. `--oversubscribe` alone would put all of them on the first."""
    slots = {host.slots for host in hosts}
    return ["--map-by", f"ppr:{slots.pop()}:node" if len(slots) == 1 else "slot"]


def _travels(name):
    return name.startswith(EXPORTED)
