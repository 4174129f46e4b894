"""Fills the folders that the variables or paths NAMES mean: BYTES in each, in files named TOKEN."""

import os
import sys
import time

PIECE = 100 << 20

token, wanted, *names = sys.argv[1:]
for name in names:
    folder, filled = os.environ.get(name, name), 0
    try:
        while filled < int(wanted):
            path = f"{folder}/{token}-{filled}"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.posix_fallocate(file, 0, PIECE)
            os.close(file)
            filled += PIECE
            time.sleep(0.1)  # who watches must have the time to see it
        print("filled", name, flush=True)
    except OSError as error:
        print(name, filled, error, flush=True)
time.sleep(2)
