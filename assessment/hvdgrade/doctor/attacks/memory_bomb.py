"""Takes memory: PROCESSES of it, each uses USED bytes and reserves more, up to RESERVED."""

import mmap
import os
import sys
import time

PIECE = 1 << 26


def explode(used, reserved):
    pieces = []
    while len(pieces) * PIECE < reserved:
        pieces.append(mmap.mmap(-1, PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        if len(pieces) * PIECE <= used:
            for start in range(0, PIECE, mmap.PAGESIZE):
                pieces[-1][start] = 1
    print("took", reserved, flush=True)
    time.sleep(2)  # so that all have it together


processes, used, reserved = map(int, sys.argv[1:])
children = []
for _ in range(processes - 1):
    children.append(os.fork())
    if children[-1] == 0:
        explode(used, reserved)
        os._exit(0)
explode(used, reserved)
for child in children:
    os.waitpid(child, 0)
