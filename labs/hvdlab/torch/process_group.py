"""Let the ranks of any launcher find each other, by the variables that `torch.distributed` reads.

    rendezvous()
    mine = group_device()
    torch.distributed.init_process_group(mine.backend)

`torchrun` sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT itself.
`mpirun` and `srun` set other variables. A script that first calls `rendezvous` can be started by each of
the three, and by plain `python` as a single rank. DeepSpeed, Lightning and AxoNN read the same variables.
"""

import atexit
import gc
import json
import os
import socket
import subprocess
from types import FunctionType
from typing import Any

import torch
from torch.distributed import ProcessGroup, TCPStore

from hvdlab.system.free_port import free_port
from hvdlab.torch.device import RankDevice, choose

_stores: list[TCPStore] = []  # kept until the process ends, because a store ends with its object
_groups: list[ProcessGroup] = []  # kept until the process ends, see `keep_group`


def rendezvous() -> None:
    """Set the variables that PyTorch's `env://` rendezvous reads, from those of the launcher.

    Variables that are set already (by torchrun, or by the user) do not change.

    Raises:
        RuntimeError: srun's host list cannot be read; or the user set the variables for several ranks,
            but LOCAL_RANK or LOCAL_WORLD_SIZE is missing.
    """
    atexit.register(_free_group)
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        missing = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name not in os.environ]
        if missing and os.environ["WORLD_SIZE"] != "1":
            raise RuntimeError(
                f"RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, but not {' and '.join(missing)}: "
                "set LOCAL_RANK to this rank's number on its machine and LOCAL_WORLD_SIZE to the number of "
                "ranks there, or start with torchrun, which sets all six."
            )
        os.environ.update({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if missing else {})
        return
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        variables = _variables_from_mpirun()
    elif int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        variables = _variables_from_srun()
    else:
        variables = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in variables.items():
        os.environ.setdefault(name, str(value))


def group_device(share: bool = True) -> RankDevice:
    """Choose the device of this rank, and make it the current CUDA device. Call it after `rendezvous`.

    All ranks must call it, because the ranks compare the GPUs that they see. Then pass the result's
    `backend` to `init_process_group`, and its `device` as `device_id` if the backend is "nccl".

    Args:
        share: whether ranks may share a GPU (default), so that Gloo copies tensors through host memory.
            Gloo supports only broadcast and all-reduce for tensors on GPUs. A script that needs other
            operations passes False; its ranks then use the processor unless NCCL connects a GPU of each
            rank.
    """
    return choose(int(os.environ["RANK"]), _gather, nccl_version(), share)


def nccl_version() -> int:
    """Return the version of NCCL that PyTorch was built with, such as 22907 for 2.29.7; 0 without NCCL."""
    if not torch.distributed.is_nccl_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]
    return 10_000 * major + 100 * minor + patch


def _gather(value: list[str]) -> list[list[str]]:
    """Return the values of all ranks, in order of rank, through the store of `init_process_group`."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size == 1:
        return [value]
    # torchrun runs the store in a separate process, and each rank is a client of that store.
    server = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        server,
        multi_tenant=True,  # so that `init_process_group` uses this server instead of starting another
    )
    _stores.append(store)
    prefix = f"hvdlab/gpus/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    store.set(f"{prefix}/{rank}", json.dumps(value))
    return [json.loads(store.get(f"{prefix}/{other}")) for other in range(size)]


def keep_group() -> None:
    """Keep the process group of the ranks in memory until Python ends, if there is one.

    A script that destroys the group before it frees its `DistributedDataParallel` can hang with Gloo
    (https://github.com/pytorch/pytorch/issues/56297). The wrapped network then frees the group. It holds
    Python's global lock and waits until Gloo's threads end, but such a thread needs the lock to free a
    tensor. The wrapped network does not free a group that another object still holds. When `_free_group`
    frees it, PyTorch releases the lock before it waits.
    """
    if torch.distributed.is_initialized() and torch.distributed.group.WORLD not in _groups:
        _groups.append(torch.distributed.group.WORLD)
        atexit.register(_free_group)


def _free_group() -> None:
    """Free the memory of a process group that was destroyed, before Python ends.

    Otherwise a thread of Gloo that still runs when Python ends aborts the rank. Two kinds of references
    keep a group: functions of modules that were imported while the group existed have it as a default
    argument (the first optimizer imports torch.distributed.optim), and wrapped networks in reference
    cycles hold it.
    """
    for each in gc.get_objects():
        if type(each) is FunctionType:
            if any(isinstance(value, ProcessGroup) for value in each.__defaults__ or ()):
                each.__defaults__ = None
    gc.collect()
    _groups.clear()


def _variables_from_mpirun() -> dict[str, Any]:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    one_host = comm.Split_type(MPI.COMM_TYPE_SHARED).size == comm.size
    address = "127.0.0.1" if one_host else socket.gethostname()
    address, port = comm.bcast((address, free_port()) if comm.rank == 0 else None)
    return {
        "RANK": comm.rank,
        "WORLD_SIZE": comm.size,
        "LOCAL_RANK": os.environ["OMPI_COMM_WORLD_LOCAL_RANK"],
        "LOCAL_WORLD_SIZE": os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"],
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


def _variables_from_srun() -> dict[str, Any]:
    """Return the variables of a rank that srun started.

    The ranks cannot send each other a port yet, so the port must follow from the number of the job.
    """
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
        "MASTER_PORT": 20_000
        + step % 10_000,  # below the ports that the system assigns to connections
    }


def _tasks(text: str) -> list[int]:
    """Return the number of tasks of each node: [2, 2, 2, 1] for Slurm's "2(x3),1"."""
    counts = []
    for part in text.split(","):
        count, _, nodes = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(nodes or 1)
    return counts
