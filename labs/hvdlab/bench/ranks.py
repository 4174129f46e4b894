"""Start the ranks of a benchmark, and read what each of them measured."""

import json
import os
import shutil
import subprocess
import sys

from hvdlab.launch import local, process_tree
from hvdlab.system.gpu_assignment import assign
from hvdlab.system.hardware import cpu_facts, gpus, usable_cores, visible_gpus

LIMIT_SECONDS = 300
DEVICES = ("cpu", "gpu")
# Variables by which the ranks use processors alone, or GPUs.
VARIABLES = {
    "cpu": {"CUDA_VISIBLE_DEVICES": "-1"},
    "gpu": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
}


class BenchFailed(Exception):
    """A variant did not run: one sentence with its name and its last words."""


def chosen_device(asked: str | None, ranks: int) -> str:
    """Return "gpu" or "cpu" for a benchmark of so many ranks.

    Args:
        asked: of the two; ranks share GPUs if there are fewer than ranks. Default (None): GPUs where each
            rank can have one, because ranks that share a GPU say little about speed.

    Raises:
        BenchFailed: GPUs are asked for, and there is none.
    """
    there = gpus()
    if asked == "gpu" and not there:
        raise BenchFailed(
            "--device gpu: nvidia-smi shows no GPU that this program may use. Try `hvdlab doctor`, or "
            "measure the processor with --device cpu."
        )
    return asked or ("gpu" if there >= ranks else "cpu")


def ranks_of_all(asked: str | None) -> int:
    """A rank for each GPU, where several may be used; else one for each core, and at least 2."""
    there = 0 if asked == "cpu" else gpus()
    return max(2, there if there > 1 else usable_cores())


def run(module: str, ranks: int, *arguments, device: str = "cpu", **environment: str) -> list[dict]:
    """Run `python -m MODULE ARGUMENTS` on one-thread ranks; return what each gave to `tell`."""
    environment = {**os.environ, **local.environment(max(ranks, 2)), **environment}
    environment["OMP_NUM_THREADS"] = "1"  # also for one rank: two threads would fake its speed
    environment["TF_NUM_INTRAOP_THREADS"] = "1"
    return start(module, ranks, environment, *arguments, device=device)


def start(
    module: str, ranks: int, environment: dict[str, str], *arguments, device: str = "cpu"
) -> list[dict]:
    """The same in an environment that is given, whole."""
    mpirun, _, count, python = local.mpirun_command(ranks, "")[:4]
    what = f"{arguments[0]} on {ranks} ranks"
    if not shutil.which(mpirun, path=environment["PATH"]):
        raise BenchFailed(f"{what} needs {mpirun}, which is not there: try `hvdlab doctor`")
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
        raise BenchFailed(f"{what} took over {LIMIT_SECONDS} s") from None
    finally:
        process_tree.end(process)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or len(lines) != ranks:
        last = (errors.strip() or "nothing printed").splitlines()[-1]
        raise BenchFailed(f"{what} failed: {last}")
    return [json.loads(line) for line in lines]


# --- in a rank --------------------------------------------------------------------------------------


def communicator():
    """MPI's communicator of all ranks. To be called before a framework is imported.

    It shows each rank one GPU at most, as some launchers do: a rank that uses no Horovod then also has
    its own. MPI starts with threads, which Horovod needs too.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    seen = comm.allgather(visible_gpus())
    mine = assign(seen)[comm.rank].index
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1" if mine is None else seen[comm.rank][mine]
    return comm


def device_of_torch(device) -> str:
    """The name of a torch.device, such as "NVIDIA H100 80GB HBM3"; of a processor as Linux has it."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def device_of_tensorflow() -> str:
    """The name of the device on which TensorFlow computes."""
    import tensorflow as tf

    for gpu in tf.config.get_visible_devices("GPU"):
        return tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
    return processor()


def processor() -> str:
    """The name of the processor, such as "AMD EPYC 7763"."""
    return cpu_facts().get("model name", "processor")


def tell(measured: dict) -> None:
    """Called once by each rank, with what it measured."""
    # One write, with its newline: lines of several ranks must not mix.
    sys.stdout.write(json.dumps(measured) + "\n")
    sys.stdout.flush()
