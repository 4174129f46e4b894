"""Replace this process with a command that runs on given cores and ends when its parent ends.

    python -m hvdgrade.batch.die_with_parent PARENT CORES COMMAND ...

PARENT is the id of the process that starts this module. CORES is a list such as "0,1", or "-" for all
cores. When the parent ends, even by kill -9, the kernel sends the command SIGTERM, so that it can stop
and clean up like after a normal request to stop.
"""

import os
import sys

from hvdgrade.run.orphans import end_with_parent


def main() -> None:
    """Run the command that the command-line arguments name; exit with code 3 if the parent has ended."""
    parent, cores, *command = sys.argv[1:]
    if cores != "-":
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    end_with_parent()
    if os.getppid() != int(parent):
        sys.exit(3)  # the parent ended before the call above, so no signal will come
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
