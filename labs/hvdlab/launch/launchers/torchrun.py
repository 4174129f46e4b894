"""Start ranks with PyTorch's torchrun: for scripts of torch.distributed, on one machine.

On several hosts the user must start torchrun once on each host. For several hosts `start` raises an error
whose message contains the line to type.
"""

import os
import random
import re
import shlex
import signal

from hvdlab.launch import hosts as hosts_of
from hvdlab.launch.launchers.launcher import End, Launcher, Line, Request
from hvdlab.launch.local import LaunchError

OTHERS = ("OMPI_", "PRTE_", "HOROVOD_")  # variables that ranks of torch.distributed do not read
TAG = re.compile(r"\[default(\d+)\]:")  # the rank that `--tee 3` puts before each line
# Lines of torchrun's own log. Its final report repeats what they say about the end of a rank.
LOG = re.compile(r"[WE]\d{4} .* torch/distributed/elastic/")
REPORT = re.compile(r"Root Cause .*?host +: (\S+).*?rank +: (\d+).*?exitcode +: (-?\d+)", re.DOTALL)
ASKED = "SignalException"  # in the report of a torchrun that a signal asked to end


def start(request: Request) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables that it needs.

    Raises:
        LaunchError: the user named hosts, or the Slurm allocation is not this one machine.
    """
    ranks, slots = request.ranks, request.slots
    variables = {k: v for k, v in request.variables.items() if not k.startswith(OTHERS)}
    if request.hosts:
        raise LaunchError(_on_each(request))
    node = os.environ.get("SLURM_JOB_NODELIST", "")
    if slots and (len(slots) > 1 or not hosts_of.is_here(node)):
        raise LaunchError(
            f"torchrun starts ranks only on the machine where it runs, and the allocation is {node}: use "
            "--launcher srun."
        )
    # --standalone makes the ranks meet at a free port. --tee puts the rank before each line.
    command = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), "--tee", "3"]
    return [*command, request.script, *request.arguments], variables


def _on_each(request: Request) -> str:
    """Return a message that says which torchrun command to type on which hosts."""
    ranks, hosts = request.ranks, request.hosts
    each = hosts[0].slots
    if {host.slots for host in hosts} != {each} or ranks != each * len(hosts):
        return (
            "torchrun starts the same number of ranks on every host: give each host the same number of "
            f"slots, {ranks} in total."
        )
    # A random port instead of torchrun's default port 29400. If another program on that host used the same
    # port, the ranks would take it for one of their own.
    port = random.randrange(20_000, 30_000)
    line = [
        *("torchrun", "--nnodes", str(len(hosts)), "--nproc-per-node", str(each)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].name}:{port}"),
        *("--rdzv-id", str(port), request.script, *request.arguments),
    ]
    known = [f"OMP_NUM_THREADS={request.variables['OMP_NUM_THREADS']}"]
    names = " and ".join(host.name for host in hosts)
    return (
        "torchrun starts ranks only on the machine where it runs: in the same folder on each of "
        f"{names} type\n    {' '.join(known)} {shlex.join(line)}"
    )


class Reader:
    """Parse the output of torchrun. After the run, `first` tells how it ended."""

    def __init__(self) -> None:
        self.first: End | None = None
        self.lost = self.said = ""
        self._begun = {}  # (rank, channel) -> the beginning of a line that is not complete yet
        self._report = None  # lines of torchrun's final report

    def read(self, text: str, channel: str) -> list[Line]:
        """Return the lines to show for one line of torchrun's output.

        Args:
            text: the line. It may end with a newline.
            channel: "stdout" or "stderr".
        """
        words, *tagged = TAG.split(text.rstrip("\n"))
        if not tagged:
            return self._own(words)
        # Ten times a second, torchrun reads what a rank has printed since the last time and puts a tag before
        # it, even in the middle of a line. So only the last part of a line is followed by a line end.
        for rank, said in zip(tagged[::2], tagged[1::2], strict=True):
            key = int(rank), channel
            self._begun[key] = self._begun.get(key, "") + said
        return [Line(*key, self._begun.pop(key))]

    def rest(self) -> list[Line]:
        """Return the remaining lines to show when the output of torchrun has ended."""
        rest = [Line(*key, said) for key, said in self._begun.items() if said]
        report = "\n".join(self._report or [])
        if found := REPORT.search(report):
            host, rank, code = found[1], int(found[2]), int(found[3])
            how = f"signal {-code} ({signal.strsignal(-code)}) on {host}" if code < 0 else ""
            self.first = End(rank, 128 - code if code < 0 else code, how)
        elif report and ASKED not in report:
            rest.append(Line(None, "stderr", report))
        return rest

    def _own(self, words: str) -> list[Line]:
        if self._report is not None:
            self._report.append(words)
        elif words.startswith("Traceback (most recent call last):"):
            self._report = [words]
        elif words.strip() and not LOG.match(words):
            return [Line(None, "stderr", words)]
        return []


LAUNCHER = Launcher(start, Reader, "RANK")
