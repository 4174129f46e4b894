"""Allocate memory: PROCESSES USED RESERVED.

Each of PROCESSES processes uses USED bytes and reserves RESERVED bytes of address space.
"""

import mmap
import os
import sys
import time

PIECE = 1 << 26


def allocate(used: int, reserved: int) -> None:
    """Allocate memory and hold it for two seconds.

    Args:
        used: bytes to write to.
        reserved: bytes of address space.
    """
    pieces = []
    while len(pieces) * PIECE < reserved:
        pieces.append(mmap.mmap(-1, PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        if len(pieces) * PIECE <= used:
            for start in range(0, PIECE, mmap.PAGESIZE):
                pieces[-1][start] = 1
    print("took", reserved, flush=True)
    time.sleep(2)  # keeps the memory of all processes in use at the same time


processes, used, reserved = map(int, sys.argv[1:])
children = []
for _ in range(processes - 1):
    children.append(os.fork())
    if children[-1] == 0:
        allocate(used, reserved)
        os._exit(0)
allocate(used, reserved)
for child in children:
    os.waitpid(child, 0)
