"""Start ranks with Open MPI's mpirun: for every kind of script, on this machine, several hosts or Slurm.

Inside a Slurm allocation mpirun uses the nodes and slots of the allocation.
"""

import os
import re
import sys

from hvdlab.launch import hosts as hosts_of
from hvdlab.launch import local
from hvdlab.launch.hosts import Host
from hvdlab.launch.launchers.launcher import End, Launcher, Line, Request
from hvdlab.system import open_mpi

# With these settings mpirun notices a lost host within 10 + 4 x 5 seconds. Open MPI's defaults need
# 300 + 9 x 20 seconds.
KEEPALIVE = {
    "PRTE_MCA_oob_tcp_keepalive_time": "10",
    "PRTE_MCA_oob_tcp_keepalive_intvl": "5",
    "PRTE_MCA_oob_tcp_keepalive_probes": "4",
}
# Beginnings of the names of variables that ranks on other hosts need too. Open MPI passes its own variables
# (OMPI_, PRTE_) to other hosts itself.
EXPORTED = (
    "PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHON", "OMP_", "MKL_", "HOROVOD_", "HVDLAB_", "NCCL_",
    "CUDA_", "TF_", "XLA_", "KERAS_", "TORCH", "LAB_",
)  # fmt: skip

TAG = r"\[1,(\d+)\]<(stdout|stderr)>:"
# Messages of mpirun about how a rank or a host was lost
EXITED = re.compile(r"Process name: +\[(?:\S+@\d+|\[\d+,\d+\]),(\d+)\]\s+Exit code: +(\d+)")
ABORTED = re.compile(
    r"Primary job +terminated normally"
)  # Open MPI 4 prints this before the message that gives the reason
SIGNALLED = re.compile(r"process rank (\d+) .*? on node (\S+) exited on\s+signal (\d+) \(([^)]+)\)")
LOST = re.compile(r"lost communication with a remote daemon.*Remote daemon: .* on node (\S+)", re.S)


def start(request: Request) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts the ranks, and the environment variables that it needs."""
    variables, hosts, slots = dict(request.variables), request.hosts, request.slots
    if slots:  # no host may get more ranks than it has slots
        for name in open_mpi.spelled(open_mpi.OVERSUBSCRIBE):
            variables.pop(name, None)
    if hosts:
        variables |= open_mpi.spelled(KEEPALIVE | _interfaces(hosts))
    command = local.mpirun_command(request.ranks, request.script, *request.arguments)
    mpirun, np, count, python, *rest = command
    where = []
    if hosts:
        python = sys.executable
        where = ["-H", ",".join(f"{host.name}:{host.slots}" for host in hosts), *_mapping(hosts)]
    if hosts or len(slots) > 1:
        names = sorted({*os.environ, *variables})
        where += [word for name in names if name.startswith(EXPORTED) for word in ("-x", name)]
    return [mpirun, np, count, *where, *open_mpi.tag_output(), python, *rest], variables


def _interfaces(hosts: list[Host]) -> dict[str, str]:
    """Return variables that select the network between the hosts: for the ranks, for mpirun and for NCCL.

    NCCL needs names of interfaces. They are the same on all nodes of a usual cluster. "=" makes NCCL compare
    the whole name instead of its beginning.
    """
    if not (network := hosts_of.network(hosts)):
        return {}
    names = ("OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include")
    found = {
        name: network.address
        for name in names
        if name.replace("include", "exclude") not in os.environ
    }
    return found | {"NCCL_SOCKET_IFNAME": f"={','.join(network.interfaces)}"}


def _mapping(hosts: list[Host]) -> list[str]:
    """Return the options that put the right number of ranks on each host.

    With `--oversubscribe` alone, mpirun would put all ranks on the first host.
    """
    slots = {host.slots for host in hosts}
    return ["--map-by", f"ppr:{slots.pop()}:node" if len(slots) == 1 else "slot"]


class Reader:
    """Parse the output of mpirun. After the run, `first` and `lost` tell how it ended."""

    def __init__(self) -> None:
        self.first: End | None = None
        self._tag = re.compile(TAG + " ?" * (not open_mpi.is_version_4()))
        self.lost = ""  # name of a lost host; mpirun's own exit code is 0 in this case
        self.said = ""  # the first sentence of a message of mpirun about something else
        self._message = None  # lines so far of a message of mpirun itself

    def read(self, text: str, channel: str) -> list[Line]:
        """Return the lines to show for one line of mpirun's output.

        Args:
            text: the line. It may end with a newline.
            channel: "stdout" or "stderr".
        """
        words, *tagged = self._tag.split(text.rstrip("\n"))
        shown = self._own(words) if words or not tagged else []
        for rank, of, printed in zip(*[iter(tagged)] * 3, strict=True):
            shown.append(Line(int(rank), of, printed))
        return shown

    def rest(self) -> list[Line]:
        """Return the remaining lines to show when the output of mpirun has ended."""
        return self._ended() if self._message else []

    def _own(self, words: str) -> list[Line]:
        if open_mpi.RULE.match(words):
            if self._message is not None:
                return self._ended()
            self._message = []
        elif self._message is not None:
            self._message.append(words)
        elif words.strip("\0 ") and not words.startswith("Abort is in progress"):
            return [Line(None, "stderr", words)]
        return []

    def _ended(self) -> list[Line]:
        message, self._message = "\n".join(self._message), None
        if found := LOST.search(message):
            self.lost = found[1]
        elif found := SIGNALLED.search(message):
            rank, host, number, name = found.groups()
            self.first = End(int(rank), 128 + int(number), f"signal {number} ({name}) on {host}")
        elif found := EXITED.search(message):
            self.first = self.first or End(int(found[1]), int(found[2]))
        elif not ABORTED.match(message):
            self.said = self.said or open_mpi.first_sentence(message)
            return [Line(None, "stderr", message.strip())]
        return []


LAUNCHER = Launcher(start, Reader, "OMPI_COMM_WORLD_RANK")
