"""Start the ranks of a benchmark, and read what each of them measured."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hvdlab import HvdlabError
from hvdlab.assessment_networks import ASSESSMENT_NET
from hvdlab.bench import results
from hvdlab.launch import local, process_tree
from hvdlab.system.gpu_assignment import assign
from hvdlab.system.hardware import cpu_facts, gpus, usable_cores, visible_gpus

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

Run = TypeVar("Run")
LIMIT_SECONDS = 300
# Environment variables with which the ranks use only processors, or GPUs.
VARIABLES = {
    "cpu": {"CUDA_VISIBLE_DEVICES": "-1"},
    "gpu": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
}


class BenchFailed(HvdlabError):
    """A variant did not run. The message is one sentence with its name and the cause."""


@dataclass(frozen=True)
class Training:
    """How the ranks of a benchmark train.

    Attributes:
        repeats: number of rounds.
        steps: timed steps per run.
        batch_size: images per rank.
        network: a network of the assessment.
        device: "cpu" or "gpu".
        tell: is called with one line of progress per run.
    """

    repeats: int = 5
    steps: int = 60
    batch_size: int = 64
    network: str = ASSESSMENT_NET
    device: str = "cpu"
    tell: Callable[[str], object] = print

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Training":
        """Return the training that a user chose with the arguments of `results.add_training`."""
        return cls(
            args.repeats, args.steps, args.batch_size, args.network, args.device, results.tell
        )


def chosen_device(asked: str | None, ranks: int) -> str:
    """Return the device of a benchmark, "gpu" or "cpu".

    Args:
        asked: "gpu", "cpu" or None. With "gpu", ranks share GPUs if there are fewer GPUs than ranks. None
            chooses GPUs only where each rank can have one, because ranks that share a GPU do not show
            how fast it is.
        ranks: number of ranks.

    Raises:
        BenchFailed: `asked` is "gpu", and there is no GPU.
    """
    present = gpus()
    if asked == "gpu" and not present:
        raise BenchFailed(
            "--device gpu: nvidia-smi shows no GPU that this program may use. Try `hvdlab doctor`, or "
            "measure the processor with --device cpu."
        )
    return asked or ("gpu" if present >= ranks else "cpu")


def ranks_of_all(asked: str | None) -> int:
    """Return one rank per GPU if there are several GPUs, else one per core; at least 2."""
    present = 0 if asked == "cpu" else gpus()
    return max(2, present if present > 1 else usable_cores())


def run(
    module: str, ranks: int, *arguments: object, device: str = "cpu", **environment: str
) -> list[dict]:
    """Run `python -m MODULE ARGUMENTS` on ranks with one thread each, and return their reports.

    The ranks find the name of a new file in HVDLAB_BENCH_STORE, through which torch.distributed connects
    them.

    Args:
        ranks: number of ranks.
        device: "cpu" or "gpu".

    Returns:
        What each rank passed to `tell`.

    Raises:
        BenchFailed: a rank failed, reported nothing, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = {"HVDLAB_BENCH_STORE": f"{folder}/store"}
        environment = {**os.environ, **local.environment(max(ranks, 2)), **store, **environment}
        # A single rank has one thread, too: with two threads it would look faster than it is.
        environment["OMP_NUM_THREADS"] = environment["TF_NUM_INTRAOP_THREADS"] = "1"
        return start(module, ranks, environment, *arguments, device=device)


def rates_in_turns(
    runs: Mapping[Run, str],
    start_run: Callable[[Run], list[dict]],
    training: Training,
) -> dict[Run, dict]:
    """Measure images/s of several runs, each of them once per round.

    The runs take turns, so that a machine that becomes slower slows down all of them. A figure is the sum
    over the ranks of a run.

    Args:
        runs: identifies each run -> its name for the lines of progress.
        training: decides the number of rounds, and prints the progress.

    Returns:
        Run -> {"device": name of the device, "rates": [images/s], one number per round}.
    """
    measured: dict[Run, dict] = {each: {"device": "", "rates": []} for each in runs}
    for repeat in range(training.repeats):
        for each, name in runs.items():
            reports = start_run(each)
            rate = sum(report["images_per_second"] for report in reports)
            measured[each]["rates"].append(rate)
            measured[each]["device"] = reports[0].get("device", "")
            training.tell(f"round {repeat + 1} of {training.repeats}: {name}: {rate:,.0f} images/s")
    return measured


def start(
    module: str, ranks: int, environment: dict[str, str], *arguments: object, device: str = "cpu"
) -> list[dict]:
    """Run `python -m MODULE ARGUMENTS` on ranks, and return their reports.

    Args:
        ranks: number of ranks.
        device: "cpu" or "gpu".

    Returns:
        What each rank passed to `tell`.

    Raises:
        BenchFailed: a rank failed, reported nothing, or took longer than LIMIT_SECONDS.
    """
    mpirun, _, count, python = local.mpirun_command(ranks, "")[:4]
    variant = f"{arguments[0]} on {ranks} ranks"
    if not shutil.which(mpirun, path=environment["PATH"]):
        raise BenchFailed(f"{variant} needs {mpirun}, which is not installed: try `hvdlab doctor`")
    process = subprocess.Popen(
        [mpirun, "-np", count, python, "-m", module, *map(str, arguments)],
        env={**environment, **VARIABLES[device], "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that `process_tree.end` finds the ranks, also after Ctrl-C
    )
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"{variant} took over {LIMIT_SECONDS} s") from None
    finally:
        process_tree.end(process)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or len(lines) != ranks:
        last = (errors.strip() or "it printed no error").splitlines()[-1]
        raise BenchFailed(f"{variant} failed: {last}")
    return [json.loads(line) for line in lines]


# --- in a rank --------------------------------------------------------------------------------------


def communicator() -> "MPI.Comm":
    """Return MPI's communicator of all ranks. Call it before any framework is imported.

    It shows each rank at most one GPU, as some launchers do. So a rank that does not use Horovod also has a
    GPU of its own. MPI starts with support for threads, which Horovod needs too.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    seen = comm.allgather(visible_gpus())
    mine = assign(seen)[comm.rank].index
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1" if mine is None else seen[comm.rank][mine]
    return comm


def device_of_torch(device: "torch.device") -> str:
    """Return the name of a torch.device: of a GPU such as "NVIDIA H100 80GB HBM3", or `processor`."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def device_of_tensorflow() -> str:
    """Return the name of the device on which TensorFlow computes."""
    import tensorflow as tf

    for gpu in tf.config.get_visible_devices("GPU"):
        return tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
    return processor()


def processor() -> str:
    """Return the name of the processor as Linux reports it, such as "AMD EPYC 7763"."""
    return cpu_facts().get("model name", "processor")


def tell(report: dict) -> None:
    """Report what this rank measured. Each rank calls it once."""
    # One write with its newline, because lines of several ranks must not mix.
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
