"""Run a script as a rank of a check: in a folder of its own, with its output in a file.

    mpirun -np 2 python rank_in_own_folder.py FOLDER SCRIPT ARGUMENTS

Rank R works in FOLDER/rank-R, as if each rank were on another machine, so that a check sees which rank writes
a file and which rank finds one. The rank leaves there

    output.txt      what it printed, and after HVDLAB_LIMIT seconds the line in which it is
    horovod.json    rank and size that Horovod reports; no file if Horovod was not initialised

With HVDLAB_KILL_AFTER=E the last rank is killed as soon as it has recorded epoch E.
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
            Path("horovod.json").write_text(
                json.dumps({"rank": hvd.rank(), "size": hvd.size()}), encoding="utf-8"
            )


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

    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        write_horovod_rank()


if __name__ == "__main__":
    main()
