"""Run a script as a rank of a check: in a folder of its own, with its output in a file.

    mpirun -np 2 python rank_in_own_folder.py FOLDER SCRIPT ARGUMENTS
    torchrun --nproc-per-node 2 rank_in_own_folder.py FOLDER SCRIPT ARGUMENTS

Rank R works in FOLDER/rank-R, as if each rank were on another machine, so that a check sees which rank writes
a file and which rank finds one. So the local rank is 0 on each rank, and the local size 1. The variable
HVDLAB_LOCAL_RANKS="0 1 0 1" gives other local ranks: here two machines with two ranks each. The rank leaves

    output.txt      what it printed, and after HVDLAB_LIMIT seconds the line in which it is
    horovod.json    rank and size that Horovod reports, and whether it was initialised when the script made
                    its optimizer or compiled its model; no file if it was never initialised
    process_group.json   rank, size and backend that torch.distributed reports; no file without a group
    broadcasts.json      lines of the script that call a broadcast of torch.distributed
    trained.json    per epoch the sum of the losses of the images that PyTorch trained on, and their number
    evaluated.json  checksums of the images that it evaluated
    loading.json    with HVDLAB_SLOW_LOADING: when each call of load_fashion_mnist began and ended
    gpu.json        with HVDLAB_PRETENDED_GPUS: see `pretended_gpus`

With HVDLAB_KILL_AFTER=E the last rank is killed as soon as it has recorded epoch E.
With HVDLAB_FIRST_RANK=F torch.distributed tells the script the ranks F, F + 1, ..., as on a further machine.
With HVDLAB_SLOW_LOADING=S each call of load_fashion_mnist takes S seconds longer, like a download, so that
ranks that load at the same time can be told from ranks that wait for each other.
"""

import contextlib
import faulthandler
import os
import re
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from hvdlab.exercises.harness import pretended_gpus, rank_observations
from hvdlab.record import launched_rank
from hvdlab.system.hardware import visible_gpus


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


def pretend_machines(rank: int, local_ranks: list[int]) -> int:
    """Give this rank its number on a machine that may not exist, and a GPU of this machine.

    Args:
        rank: The number of this rank.
        local_ranks: of the ranks 0, 1, ...; they are repeated for further ranks.

    Returns:
        The local rank.
    """
    local, size = local_ranks[rank % len(local_ranks)], max(local_ranks) + 1
    for name in ("LOCAL_", "OMPI_COMM_WORLD_LOCAL_"):
        if f"{name}RANK" in os.environ:
            os.environ |= {f"{name}RANK": str(local), f"{name}SIZE": str(size)}
    if "LOCAL_WORLD_SIZE" in os.environ:
        os.environ["LOCAL_WORLD_SIZE"] = str(size)
    if len(gpus := visible_gpus()) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[rank % len(gpus)]
    with contextlib.suppress(ImportError):
        from horovod.common.basics import HorovodBasics

        for name, value in (("local_rank", local), ("local_size", size)):
            # the real one raises an error before hvd.init()
            real = getattr(HorovodBasics, name)
            setattr(HorovodBasics, name, lambda self, r=real, v=value: (r(self), v)[1])
    return local


def observe(script: str, local_rank: int) -> None:
    """Observe what the script does, and pretend what the variables say.

    Args:
        local_rank: The number of this rank on its machine.
    """
    text = Path(script).read_text(encoding="utf-8", errors="replace")
    imports = " ".join(re.findall(r"^ *(?:import|from) .*", text, re.MULTILINE))
    count = int(os.environ.get("HVDLAB_PRETENDED_GPUS", 0))
    choice = pretended_gpus.Choice(local_rank) if count else None
    if "hvdlab.data" in imports:
        rank_observations.number_images()
    if "torch.distributed" in imports:
        rank_observations.watch_process_group(script)
    if "HVDLAB_SLOW_LOADING" in os.environ:
        rank_observations.slow_loading(float(os.environ["HVDLAB_SLOW_LOADING"]))
    if "keras" in imports and choice:
        pretended_gpus.pretend_keras(choice, count)
    elif "keras" in imports:
        rank_observations.watch_keras()
    elif "torch" in imports and choice:
        pretended_gpus.pretend_torch(choice, count)
    elif "torch" in imports:
        rank_observations.watch_training()


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
    local_ranks = os.environ.get("HVDLAB_LOCAL_RANKS", "0").split()
    observe(script, pretend_machines(rank, [int(number) for number in local_ranks]))

    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        rank_observations.write_horovod_rank(in_time=False)
        rank_observations.write_process_group()


if __name__ == "__main__":
    main()
