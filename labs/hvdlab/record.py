"""Write the record of a training run, in the format that labs, benchmarks and the grader share.

Standard library only. The folder of a run is `$HVDLAB_RUN_DIR` (default `./runs/<time of its start>`):

    rank-R/epoch-EEE.npz     weights of rank R after epoch EEE (`hvdlab.assessment_networks`) and
                             `examples_read`, the indices that the rank read in this epoch, in order
    rank-R/record.jsonl      one line per epoch: epoch, seconds, steps, examples, batch_size, and what
                             the script reports

The recorders of `hvdlab.torch` and `hvdlab.keras` write the record. A file appears only when it is complete.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

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
    """Return whether a weight is a batch-norm statistic, which may differ between ranks.

    Returns:
        True for a batch-norm statistic, False for a trained weight.
    """
    return name.endswith((".running_mean", ".running_var"))


def launched_rank() -> tuple[int, int]:
    """Return (rank, world size) that the launcher gave this process; (0, 1) without a launcher.

    It reads the environment variables of Open MPI, Hydra (MPICH, Intel MPI), Slurm or torchrun. So a serial
    script that mpirun started twice is recognised as two processes.
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
    """Return when this run was started, in seconds since 1970. It is the same on all ranks of a machine.

    It is the start time of the parent process of the ranks. The current time would be the same only if all
    ranks read it within the same second. Ranks on several hosts have different parents, so `hvdlab run` gives
    them the name of the folder.
    """
    if launched_rank()[1] > 1:
        try:
            # Ticks since the machine was booted. The process name before them may contain brackets.
            fields = (
                Path(f"/proc/{os.getppid()}/stat").read_text("utf-8").rpartition(")")[2].split()
            )
            lines = Path("/proc/stat").read_text("utf-8").splitlines()
            booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
            return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError, StopIteration):
            pass  # a system that hides other processes, or has no /proc
    return time.time()


class RunRecord:
    """Write the record of one rank: a weights file and a line per epoch.

    Attributes:
        rank: of this process.
        folder: where the files of this rank are written.
        started: value of `time.monotonic()` when this object was made.

    Args:
        folder: of the run. Default: `$HVDLAB_RUN_DIR`, else `./runs/<date-time>` of its start.
        rank: of this process. Default: as the launcher reports it.
    """

    def __init__(self, folder: str | Path | None = None, rank: int | None = None) -> None:
        self.rank = launched_rank()[0] if rank is None else rank
        name = f"rank-{self.rank}"
        if not (folder := folder or os.environ.get("HVDLAB_RUN_DIR")):
            folder = _default_folder(launch_time())
            # There may be an older record: of this run, or of an earlier run in the same job.
            if (folder / name).exists():
                folder = _default_folder(time.time())
        self.folder = Path(folder) / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.started = time.monotonic()

    def write(self, epoch: int, save: Callable[[IO[bytes]], object], **values: object) -> Path:
        """Write the files of one epoch.

        The line is written first. The weights file gets its name when it is complete. So a program that sees
        the file can read both.

        Args:
            epoch: number of the epoch, from 0.
            save: writes the weights in npz format to a file object.
            values: what to write to the line of the epoch, as JSON.

        Returns:
            The path of the weights file.
        """
        line = {"epoch": epoch, "seconds": round(time.monotonic() - self.started, 3), **values}
        with open(self.folder / "record.jsonl", "a", encoding="utf-8") as record:
            record.write(json.dumps(line) + "\n")
        final = self.folder / f"epoch-{epoch:03d}.npz"
        part = final.with_suffix(".part")
        with open(part, "wb") as file:
            save(file)
        os.replace(part, final)
        if probe_mode.COPIES:
            time.sleep(probe_mode.PAUSE_SECONDS)
        return final


def _default_folder(when: float) -> Path:
    return Path("runs", time.strftime("%Y%m%d-%H%M%S", time.localtime(when)))
