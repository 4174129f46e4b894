"""Replace this process with a command that runs on given cores and ends when its parent ends.

    python -m hvdgrade.batch.die_with_parent PARENT CORES COMMAND ...

PARENT is the id of the process that starts this module. CORES is a list such as "0,1", or "-" for all
cores. When the parent ends, even by kill -9, the kernel sends the command SIGTERM, so that it can stop
and clean up like after a normal request to stop.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, cores, *command = sys.argv[1:]
    if cores != "-":
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(3)  # the parent ended before prctl, so no signal will come
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
