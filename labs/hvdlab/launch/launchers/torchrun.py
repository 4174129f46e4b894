"""Start ranks with PyTorch's torchrun: for scripts of torch.distributed, on one machine.

On several hosts the user must start torchrun once on each host. For several hosts `start` raises an error
whose message contains the line to type.
"""

import os
import random
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence

from hvdlab.launch import hosts as hosts_of
from hvdlab.launch.hosts import Host
from hvdlab.launch.launchers.base import End, Line, abort_children
from hvdlab.launch.local import LaunchError

OTHERS = ("OMPI_", "PRTE_", "HOROVOD_")  # variables that ranks of torch.distributed do not read
TAG = re.compile(r"\[default(\d+)\]:")  # the rank that `--tee 3` puts before each line
# Lines of torchrun's own log. Its final report repeats what they say about the end of a rank.
LOG = re.compile(r"[WE]\d{4} .* torch/distributed/elastic/")
REPORT = re.compile(r"Root Cause .*?host +: (\S+).*?rank +: (\d+).*?exitcode +: (-?\d+)", re.DOTALL)
ASKED = "SignalException"  # in the report of a torchrun that a signal asked to end


def start(
    ranks: int,
    script: str,
    arguments: Sequence[str],
    variables: dict[str, str],
    hosts: list[Host],
    slots: list[int],
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables that it needs.

    Args:
        ranks: number of ranks.
        script: the Python file.
        arguments: of the script.
        variables: environment variables that the ranks should have.
        hosts: hosts that the user named; empty if there are none.
        slots: number of ranks that may start on each node of an allocation; empty if it is not known.

    Raises:
        LaunchError: the user named hosts, or the Slurm allocation is not this one machine.
    """
    variables = {name: value for name, value in variables.items() if not name.startswith(OTHERS)}
    if hosts:
        raise LaunchError(_on_each(ranks, script, arguments, variables, hosts))
    node = os.environ.get("SLURM_JOB_NODELIST", "")
    if slots and (len(slots) > 1 or not hosts_of.is_here(node)):
        raise LaunchError(
            f"torchrun starts ranks only on the machine where it runs, and the allocation is {node}: use "
            "--launcher srun."
        )
    # --standalone makes the ranks meet at a free port. --tee puts the rank before each line.
    command = ["torchrun", "--standalone", "--nproc-per-node", str(ranks), "--tee", "3", script]
    return [*command, *arguments], variables


def _on_each(
    ranks: int,
    script: str,
    arguments: Sequence[str],
    variables: dict[str, str],
    hosts: list[Host],
) -> str:
    """Return a message that says which torchrun command to type on which hosts."""
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
        *("--rdzv-id", str(port), script, *arguments),
    ]
    known = [f"OMP_NUM_THREADS={variables['OMP_NUM_THREADS']}"]
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


def send(process: subprocess.Popen, number: int) -> None:
    """Send a signal to torchrun, which forwards to its ranks the signals that ask a process to end.

    Args:
        process: the launcher.
        number: of the signal.
    """
    process.send_signal(number)


def tell_where(process: subprocess.Popen, ranks: set[int] | None) -> None:
    """End ranks (None: all) so that they print the line of the script that they are executing.

    Args:
        process: the launcher.
        ranks: numbers of ranks. None: all ranks.
    """
    abort_children(process, "RANK", ranks)
