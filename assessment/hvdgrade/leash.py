"""Becomes a command that runs on given cores and that the kernel ends when its parent is gone.

    python -m hvdgrade.leash PARENT CORES COMMAND ...

PARENT is the process id of whoever starts it, CORES is "0,1" or "-" for all. When the parent ends, even
by kill -9, the command gets SIGTERM, as if somebody had asked it to stop.
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
        sys.exit(3)  # it ended before we were on its leash
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
