"""Start ranks with Slurm's srun: for scripts of torch.distributed, on the nodes of an allocation.

Ranks that connect through MPI (Horovod, mpi4py) need a PMIx library in Slurm that fits Open MPI's.
Without it, srun starts N separate MPI worlds of one rank each and prints no error. See preflight.py.
"""

import os
import re
import signal
import subprocess

from hvdlab.launch.launchers.launcher import End, Launcher, Line, Request, mpi_of
from hvdlab.launch.launchers.torchrun import OTHERS
from hvdlab.launch.local import LaunchError

SECONDS = 30  # time limit of a Slurm command
TAG = re.compile(r"\s*(\d+): ?(.*)")  # the rank that `--label` puts before each line
ENDED = re.compile(r"srun: error: (\S+): tasks? (\d+)\S*: (?:Exited with exit code (\d+)|(.+))")
# Other messages of Slurm about the end of a rank; they add no information
COMMENT = re.compile(
    r"srun: (Force Terminated|forcing job|Terminating|Job step aborted|launch/slurm: _step_signal)"
    r"|slurmstepd\S*: error: \*\*\* (STEP|JOB) "
)
NUMBERS = {signal.strsignal(number): int(number) for number in signal.Signals}


def start(request: Request) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables that it needs.

    Raises:
        LaunchError: this is not inside a Slurm allocation, or the user named hosts.
    """
    ranks, variables = request.ranks, request.variables
    if request.hosts:
        raise LaunchError("srun starts ranks on the nodes that Slurm gave: leave out the hosts.")
    if "SLURM_JOB_ID" not in os.environ:
        raise LaunchError(
            "srun starts ranks inside a Slurm allocation, and this is outside of one: begin with "
            f"`salloc --ntasks={ranks}`, or write a job for sbatch (docker/slurm/torch.sbatch)."
        )
    command = ["srun", "-n", str(ranks), "--label", "--kill-on-bad-exit", "--export=ALL"]
    if mpi_of(request.script):
        # Without PMIx in Slurm this option makes srun fail, instead of starting N separate MPI worlds.
        command.append("--mpi=pmix")
    else:
        variables = {
            name: value for name, value in variables.items() if not name.startswith(OTHERS)
        }
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        command.append(f"--cpus-per-task={cores}")  # because srun does not inherit it from sbatch
        variables = {**variables, "OMP_NUM_THREADS": cores, "TF_NUM_INTRAOP_THREADS": cores}
    return [*command, "python", request.script, *request.arguments], variables


class Reader:
    """Parse the output of srun. After the run, `first` tells how it ended."""

    def __init__(self) -> None:
        self.first: End | None = None
        self.lost = self.said = ""

    def read(self, text: str, channel: str) -> list[Line]:
        """Return the lines to show for one line of srun's output.

        Args:
            text: the line. It may end with a newline.
            channel: "stdout" or "stderr".
        """
        words = text.rstrip("\n")
        tagged = TAG.fullmatch(words)
        printed = tagged[2] if tagged else words
        if COMMENT.match(printed):
            return []
        if tagged:
            return [Line(int(tagged[1]), channel, printed)]
        if found := ENDED.match(words):
            self.first = self.first or _end(*found.groups())
            return []
        return [Line(None, "stderr", words)] if words.strip() else []

    def rest(self) -> list[Line]:
        """Return the remaining lines to show when the output of srun has ended: none."""
        return []


def _end(host: str, rank: str, code: str | None, how: str) -> End:
    if code:
        return End(int(rank), int(code))
    name = how.removesuffix(" (core dumped)")
    number = NUMBERS.get(name, signal.SIGKILL)  # "Out Of Memory" is not the name of a signal
    return End(int(rank), 128 + number, f"signal {int(number)} ({name}) on {host}")


def _step(srun: int) -> str:
    """Return the id of the job step that this srun process has started, such as 12.0; "" if unknown."""
    job = os.environ["SLURM_JOB_ID"]
    for step in (_slurm("scontrol", "show", "step", job, "--oneliner") or "").splitlines():
        words = dict(word.partition("=")[::2] for word in step.split())
        if words.get("SrunHost:Pid", "").endswith(f":{srun}"):
            return words["StepId"]
    return ""


def _slurm(*command: str) -> str | None:
    """Return the output of a Slurm command; None if it fails."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


class Srun(Launcher):
    """Slurm's srun: its ranks may be on other nodes, so that only Slurm can send them a signal."""

    def send(self, process: subprocess.Popen, number: int) -> None:
        """Send a signal to all ranks on all nodes.

        scancel sends it, because srun would not forward it: when srun is asked to end, it kills the ranks.
        """
        if step := _step(process.pid):
            name = signal.Signals(number).name.removeprefix("SIG")
            if _slurm("scancel", f"--signal={name}", step) is not None:
                return
        process.terminate()

    def tell_where(self, process: subprocess.Popen, ranks: set[int] | None) -> None:
        """End all ranks, because Slurm cannot end some of a step, so that they print their line."""
        self.send(process, signal.SIGABRT)


LAUNCHER = Srun(start, Reader, "SLURM_PROCID")
