"""What a training run leaves behind: the one format that labs, benches and the grader share.

Stdlib only. A run's folder is `$HVDLAB_RUN_DIR` (default `./runs/<time of its start>`):

    rank-R/epoch-EEE.npz     weights of rank R after epoch EEE (`hvdlab.assessment_networks`) and
                             `examples_read`, the indices it was given this epoch, in order
    rank-R/record.jsonl      one line an epoch: epoch, seconds, steps, examples, batch_size, and what
                             the script reports

The recorders of `hvdlab.torch` and `hvdlab.keras` write it; files appear whole or not at all.
"""

import json
import os
import time
from pathlib import Path

from hvdlab import probe_mode

# Mean and standard deviation of CIFAR-10's training pixels, red green blue, in 0..1.
PIXEL_MEAN = (0.4914, 0.4822, 0.4465)
PIXEL_STD = (0.2470, 0.2435, 0.2616)

# The assessment network, weight by weight: convolutions (out, in, height, width), linear (out, in).
WEIGHTS = {
    "conv1.weight": (32, 3, 4, 4),
    "conv1.bias": (32,),
    "conv2.weight": (64, 32, 3, 3),
    "norm2.weight": (64,),
    "norm2.bias": (64,),
    "norm2.running_mean": (64,),
    "norm2.running_var": (64,),
    "conv3.weight": (128, 64, 3, 3),
    "norm3.weight": (128,),
    "norm3.bias": (128,),
    "norm3.running_mean": (128,),
    "norm3.running_var": (128,),
    "conv4.weight": (256, 128, 3, 3),
    "norm4.weight": (256,),
    "norm4.bias": (256,),
    "norm4.running_mean": (256,),
    "norm4.running_var": (256,),
    "linear.weight": (10, 256),
    "linear.bias": (10,),
}


def is_statistic(name: str) -> bool:
    """True for batch-norm statistics, which each rank keeps for itself; False for trained weights."""
    return name.endswith((".running_mean", ".running_var"))


def launched_rank() -> tuple[int, int]:
    """(rank, world size) that the launcher gave this process; (0, 1) without a launcher.

    Read from the environment of Open MPI, Hydra (MPICH, Intel MPI), Slurm or torchrun, so that a
    serial script started twice by mpirun is seen as what it is: two processes.
    """
    for rank, size in (
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def launch_time() -> float:
    """When this run was started, in seconds since 1970: the same on all ranks of a machine.

    It is when their parent began: a rank's own clock would do only as long as all look at it within the
    same second. Ranks of several hosts have a parent each: `hvdlab run` names them a folder.
    """
    if launched_rank()[1] > 1:
        try:
            # Ticks since the machine was booted. The name before them may hold anything, even brackets.
            fields = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
            lines = Path("/proc/stat").read_text().splitlines()
            booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
            return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError, StopIteration):
            pass  # a system that hides other processes, or has no /proc
    return time.time()


class RunRecord:
    """One rank's part of a run: a folder that gains a weights file and a line each epoch.

    Args:
        folder: the run's folder. Default: `$HVDLAB_RUN_DIR`, else `./runs/<date-time>` of its start.
        rank: this process's rank. Default: what the launcher said.
    """

    def __init__(self, folder: str | Path | None = None, rank: int | None = None):
        self.rank = launched_rank()[0] if rank is None else rank
        name = f"rank-{self.rank}"
        if not (folder := folder or os.environ.get("HVDLAB_RUN_DIR")):
            folder = _default_folder(launch_time())
            if (
                folder / name
            ).exists():  # a second record of this run, or a second run of a job's script
                folder = _default_folder(time.time())
        self.folder = Path(folder) / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()

    def write(self, epoch: int, save, **values) -> Path:
        """Add one epoch: `save(file)` writes the npz into a file object; `values` go to the line.

        The weights file is renamed into place when it is whole, after its line is written: who
        sees the file can read both.
        """
        line = {"epoch": epoch, "seconds": round(time.monotonic() - self.started, 3), **values}
        with open(self.folder / "record.jsonl", "a") as record:
            record.write(json.dumps(line) + "\n")
        final = self.folder / f"epoch-{epoch:03d}.npz"
        part = final.with_suffix(".part")
        with open(part, "wb") as file:
            save(file)
        os.replace(part, final)
        if probe_mode.COPIES:
            time.sleep(probe_mode.PAUSE)
        return final


def _default_folder(when: float) -> Path:
    return Path("runs", time.strftime("%Y%m%d-%H%M%S", time.localtime(when)))
