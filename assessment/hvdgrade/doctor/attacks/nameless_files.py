"""Fill a folder with open files that are already deleted: VARIABLE BYTES.

The environment variable VARIABLE holds the folder. Such files take disk space, but no listing shows them.
"""

import os
import sys
import time

PIECE = 512 << 20

folder, wanted, files = os.environ[sys.argv[1]], int(sys.argv[2]), []
try:
    while len(files) * PIECE < wanted:
        path = os.path.join(folder, "nameless")
        files.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.unlink(path)
        os.posix_fallocate(files[-1], 0, PIECE)
    print("filled", flush=True)
except OSError as error:
    print(error, flush=True)
time.sleep(2)
