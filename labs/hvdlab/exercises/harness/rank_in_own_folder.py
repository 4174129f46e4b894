"""Run a script as a rank of a check: in a folder of its own, with its output in a file.

    mpirun -np 2 python rank_in_own_folder.py FOLDER SCRIPT ARGUMENTS
    torchrun --nproc-per-node 2 rank_in_own_folder.py FOLDER SCRIPT ARGUMENTS

Rank R works in FOLDER/rank-R, as if each rank were on another machine, so that a check sees which rank writes
a file and which rank finds one. The rank leaves there

    output.txt      what it printed, and after HVDLAB_LIMIT seconds the line in which it is
    horovod.json    rank and size that Horovod reports; no file if Horovod was not initialised
    process_group.json   rank, size and backend that torch.distributed reports; no file without a group
    loading.json    with HVDLAB_SLOW_LOADING: when each call of load_fashion_mnist began and ended

With HVDLAB_KILL_AFTER=E the last rank is killed as soon as it has recorded epoch E.
With HVDLAB_SLOW_LOADING=S each call of load_fashion_mnist takes S seconds longer, like a download, so that
ranks that load at the same time can be told from ranks that wait for each other.
"""

import faulthandler
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from hvdlab.record import launched_rank

HOROVOD, PROCESS_GROUP, LOADING = "horovod.json", "process_group.json", "loading.json"


def kill_after(epoch: int, rank: int) -> None:
    """Kill this process when it has recorded an epoch.

    Args:
        epoch: The number of the epoch.
        rank: The number of this rank.
    """
    last = Path(os.environ["HVDLAB_RUN_DIR"], f"rank-{rank}", f"epoch-{epoch:03d}.npz")
    while not last.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def write_horovod_rank() -> None:
    """Write rank and size to horovod.json if Horovod is initialised."""
    for name in ("horovod.torch", "horovod.tensorflow"):
        hvd = sys.modules.get(name)
        if hvd and hvd.is_initialized():
            _write(HOROVOD, {"rank": hvd.rank(), "size": hvd.size()})


def write_process_group() -> None:
    """Write rank, size and backend to process_group.json if torch.distributed is initialised."""
    dist = sys.modules.get("torch.distributed")
    if dist and dist.is_available() and dist.is_initialized():
        group = {"rank": dist.get_rank(), "size": dist.get_world_size()}
        _write(PROCESS_GROUP, {**group, "backend": dist.get_backend()})


def watch_process_group() -> None:
    """Make `destroy_process_group` write process_group.json first, because afterwards there is no group."""
    import torch.distributed as dist

    destroy = dist.destroy_process_group

    def write_and_destroy(*arguments: object, **options: object) -> None:
        write_process_group()
        destroy(*arguments, **options)

    dist.destroy_process_group = write_and_destroy


def slow_loading(seconds: float) -> None:
    """Make `load_fashion_mnist` slower, and write when it began and ended."""
    from hvdlab import data

    load, calls = data.load_fashion_mnist, []

    def load_slowly(*arguments: object) -> data.Dataset:
        began = time.monotonic()  # of the machine: the clocks of its processes agree
        time.sleep(seconds)
        loaded = load(*arguments)
        calls.append({"began": began, "ended": time.monotonic()})
        _write(LOADING, calls)
        return loaded

    data.load_fashion_mnist = load_slowly


def _write(name: str, value: dict | list) -> None:
    Path(name).write_text(json.dumps(value), encoding="utf-8")


def main() -> None:
    """Run the script that the command line names."""
    folder, script, *arguments = sys.argv[1:]
    rank, size = launched_rank()
    own = Path(folder).resolve() / f"rank-{rank}"
    script = str(Path(script).resolve())
    own.mkdir(parents=True, exist_ok=True)
    os.chdir(own)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.dump_traceback_later(float(os.environ["HVDLAB_LIMIT"]))
    if "HVDLAB_KILL_AFTER" in os.environ and rank == size - 1:
        epoch = int(os.environ["HVDLAB_KILL_AFTER"])
        threading.Thread(target=kill_after, args=(epoch, rank), daemon=True).start()

    if "torch.distributed" in Path(script).read_text(encoding="utf-8", errors="replace"):
        watch_process_group()
    if "HVDLAB_SLOW_LOADING" in os.environ:
        slow_loading(float(os.environ["HVDLAB_SLOW_LOADING"]))

    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        write_horovod_rank()
        write_process_group()


if __name__ == "__main__":
    main()
