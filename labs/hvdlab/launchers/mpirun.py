"""Open MPI's mpirun: for every kind of script, on this machine, on several hosts and under Slurm.

It starts the ranks also inside a Slurm allocation, whose nodes and slots it takes over.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from hvdlab import hosts as hosts_of
from hvdlab import launch
from hvdlab.hosts import Host
from hvdlab.launchers import End, Line, abort_children
from hvdlab.system import open_mpi

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

TAG = r"\[1,(\d+)\]<(stdout|stderr)>:"
RULE = re.compile(r"-{20,}$")  # around a message of mpirun's own
# Its messages about an end
EXITED = re.compile(r"Process name: +\[(?:\S+@\d+|\[\d+,\d+\]),(\d+)\]\s+Exit code: +(\d+)")
ABORTED = re.compile(
    r"Primary job +terminated normally"
)  # Open MPI 4, before it says what happened
SIGNALLED = re.compile(r"process rank (\d+) .*? on node (\S+) exited on\s+signal (\d+) \(([^)]+)\)")
LOST = re.compile(r"lost communication with a remote daemon.*Remote daemon: .* on node (\S+)", re.S)


def start(
    ranks: int,
    script: str,
    arguments: Sequence[str],
    variables: dict[str, str],
    hosts: list[Host],
    slots: list[int],
) -> tuple[list[str], dict[str, str]]:
    """The command, and the variables that it needs.

    Args:
        hosts: named by the user; empty for this machine, or the nodes of a Slurm allocation.
        slots: of each host or node; empty when they are not known.
    """
    variables = dict(variables)
    if slots:  # no host may be crowded
        for name in open_mpi.spelled(open_mpi.OVERSUBSCRIBE):
            variables.pop(name, None)
    if hosts:
        variables |= open_mpi.spelled(KEEPALIVE | _interfaces(hosts))
    mpirun, np, count, python, *rest = launch.command(ranks, script, *arguments)
    where = []
    if hosts:
        python = sys.executable
        where = ["-H", ",".join(f"{host.name}:{host.slots}" for host in hosts), *_mapping(hosts)]
    if hosts or len(slots) > 1:
        names = sorted({*os.environ, *variables})
        where += [word for name in names if name.startswith(EXPORTED) for word in ("-x", name)]
    return [mpirun, np, count, *where, *open_mpi.tag_output(), python, *rest], variables


def _interfaces(hosts):
    """The network between the hosts: for the ranks, for mpirun itself, and for NCCL.

    NCCL takes names, which are the same on all nodes of a usual cluster; "=" means these names exactly.
    """
    if not (one := hosts_of.network(hosts)):
        return {}
    names = ("OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include")
    found = {
        name: one.address for name in names if name.replace("include", "exclude") not in os.environ
    }
    return found | {"NCCL_SOCKET_IFNAME": f"={','.join(one.interfaces)}"}


def _mapping(hosts):
    """So many ranks on each host. `--oversubscribe` alone would put all of them on the first."""
    slots = {host.slots for host in hosts}
    return ["--map-by", f"ppr:{slots.pop()}:node" if len(slots) == 1 else "slot"]


class Reader:
    """Takes apart what mpirun prints. Afterwards `first` and `lost` say how the run ended."""

    def __init__(self):
        self.first: End | None = None
        self._tag = re.compile(TAG + " ?" * (not open_mpi.is_version_4()))
        self.lost = ""  # the host that is gone: mpirun's own exit code is 0 then
        self._message = None  # lines of a message of mpirun's that has not ended

    def read(self, text: str, channel: str) -> list[Line]:
        """What there is to show of a line."""
        words, *tagged = self._tag.split(text.rstrip("\n"))
        shown = self._own(words) if words or not tagged else []
        for rank, of, said in zip(*[iter(tagged)] * 3, strict=True):
            shown.append(Line(int(rank), of, said))
        return shown

    def rest(self) -> list[Line]:
        """What is left to show when mpirun prints no more."""
        return self._ended() if self._message else []

    def _own(self, words):
        if RULE.match(words):
            if self._message is not None:
                return self._ended()
            self._message = []
        elif self._message is not None:
            self._message.append(words)
        elif words.strip("\0 ") and not words.startswith("Abort is in progress"):
            return [Line(None, "stderr", words)]
        return []

    def _ended(self):
        message, self._message = "\n".join(self._message), None
        if found := LOST.search(message):
            self.lost = found[1]
        elif found := SIGNALLED.search(message):
            rank, host, number, name = found.groups()
            self.first = End(int(rank), 128 + int(number), f"signal {number} ({name}) on {host}")
        elif found := EXITED.search(message):
            self.first = self.first or End(int(found[1]), int(found[2]))
        elif not ABORTED.match(message):
            return [Line(None, "stderr", message.strip())]
        return []


def send(process: subprocess.Popen, number: int) -> None:
    """Send a signal to mpirun, which passes on what asks its ranks to end."""
    process.send_signal(number)


def tell_where(process: subprocess.Popen, ranks: set[int] | None) -> None:
    """End ranks on this machine (None: all) so that they print the line of the script they are in."""
    abort_children(process, "OMPI_COMM_WORLD_RANK", ranks)
