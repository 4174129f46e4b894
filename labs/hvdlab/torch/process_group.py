"""Let the ranks of any launcher find each other: what `torch.distributed` wants to know, as variables.

    rendezvous()
    mine = group_device()
    torch.distributed.init_process_group(mine.backend)

`torchrun` sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT itself;
`mpirun` and `srun` say the same in words of their own. A script that calls `rendezvous` first starts
under each of the three, and by `python` alone as one rank. DeepSpeed, Lightning and AxoNN read the
same variables.
"""

import atexit
import contextlib
import gc
import json
import os
import random
import socket
import subprocess
from types import FunctionType

import torch
from torch.distributed import ProcessGroup, TCPStore

from hvdlab.torch.device import RankDevice, choose

_stores: list = []  # kept until the process ends


def rendezvous() -> None:
    """Set the variables that PyTorch's `env://` rendezvous reads, from those of the launcher.

    Variables that are set already (by torchrun, or by hand) are left as they are.

    Raises:
        RuntimeError: srun's ranks whose host list cannot be read; variables set by hand for several ranks,
            without LOCAL_RANK or LOCAL_WORLD_SIZE.
    """
    atexit.register(_free_group)
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        missing = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name not in os.environ]
        if missing and os.environ["WORLD_SIZE"] != "1":
            raise RuntimeError(
                f"RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, and {' and '.join(missing)} not: "
                "set LOCAL_RANK to this rank's number on its machine and LOCAL_WORLD_SIZE to the number of "
                "ranks there, or start by torchrun, which sets all six."
            )
        os.environ.update({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if missing else {})
        return
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        found = _of_mpirun()
    elif int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        found = _of_srun()
    else:
        found = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        found |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in found.items():
        os.environ.setdefault(name, str(value))


def group_device(share: bool = True) -> RankDevice:
    """Choose the device of this rank, and make it the current CUDA device. Call it after `rendezvous`.

    All ranks must call it: they compare the GPUs that they see. `init_process_group` then takes the result's
    `backend`, and its `device` as `device_id` if the backend is "nccl".

    Args:
        share: whether ranks may share a GPU, where Gloo copies tensors through host memory. Of tensors on
            GPUs Gloo promises to broadcast and to all-reduce them, and nothing else: a script that needs
            more passes False, and its ranks use the processor unless NCCL connects a GPU of each.
    """
    return choose(int(os.environ["RANK"]), _gather, nccl_version(), share)


def nccl_version() -> int:
    """Version of the NCCL that PyTorch was built with, such as 22907 for 2.29.7; 0 without NCCL."""
    if not torch.distributed.is_nccl_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]
    return 10_000 * major + 100 * minor + patch


def _gather(value: list[str]) -> list[list[str]]:
    """The values of all ranks, in order of rank, through the store that `init_process_group` uses as well."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        return [value]
    # torchrun runs the store in a process of its own, and each rank is a client of it.
    server = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        server,
        multi_tenant=True,  # `init_process_group` finds this server in place of starting another
    )
    _stores.append(store)  # the server ends with it
    prefix = f"hvdlab/gpus/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    store.set(f"{prefix}/{rank}", json.dumps(value))
    return [json.loads(store.get(f"{prefix}/{other}")) for other in range(size)]


def _free_group() -> None:
    """Let go of a group that was destroyed: a thread of Gloo's that meets the end of Python aborts the rank.

    Modules that are imported while it is there, as the first optimizer does with torch.distributed.optim,
    have it as a default argument. Networks wrapped in cycles hold it, too.
    """
    for each in gc.get_objects():
        if type(each) is FunctionType:
            if any(isinstance(value, ProcessGroup) for value in each.__defaults__ or ()):
                each.__defaults__ = None
    gc.collect()


def _of_mpirun():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    alone = comm.Split_type(MPI.COMM_TYPE_SHARED).size == comm.size  # all ranks on one host
    address = "127.0.0.1" if alone else socket.gethostname()
    address, port = comm.bcast((address, free_port()) if comm.rank == 0 else None)
    return {
        "RANK": comm.rank,
        "WORLD_SIZE": comm.size,
        "LOCAL_RANK": os.environ["OMPI_COMM_WORLD_LOCAL_RANK"],
        "LOCAL_WORLD_SIZE": os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"],
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


def _of_srun():
    """srun tells no rank what another one found out: the port must follow from the job's number."""
    nodes, node = os.environ["SLURM_STEP_NODELIST"], int(os.environ["SLURM_NODEID"])
    try:
        command = ["scontrol", "show", "hostnames", nodes]
        names = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise RuntimeError(
            f"srun's host list {nodes!r} cannot be read, because scontrol failed ({error}): set "
            "MASTER_ADDR to the first host and MASTER_PORT to a free port there."
        ) from None
    step = int(os.environ["SLURM_JOB_ID"]) * 31 + int(os.environ["SLURM_STEP_ID"])
    return {
        "RANK": os.environ["SLURM_PROCID"],
        "WORLD_SIZE": os.environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": _tasks(os.environ["SLURM_STEP_TASKS_PER_NODE"])[node],
        "MASTER_ADDR": names.stdout.split()[0],
        "MASTER_PORT": 20_000 + step % 10_000,  # below the ports that a system gives away
    }


def _tasks(text: str) -> list[int]:
    """The tasks of each node, from Slurm's "2(x3),1"."""
    counts = []
    for part in text.split(","):
        count, _, nodes = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(nodes or 1)
    return counts


def free_port() -> int:
    """A port that nobody uses, below those that the system gives to connections (Linux: from 32,768 on).

    One of those could be taken again before rank 0 listens there.

    Raises:
        RuntimeError: none of a hundred is free.
    """
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            return port
    raise RuntimeError(
        "a hundred ports from 20,000 to 29,999 are in use: set MASTER_PORT to a free one."
    )
