"""Fill folders with files: TOKEN BYTES NAME ...

Each NAME is a folder, or an environment variable that holds a folder. Each folder receives BYTES bytes, in
files whose names begin with TOKEN.
"""

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
            time.sleep(0.1)  # gives the grader time to notice the files
        print("filled", name, flush=True)
    except OSError as error:
        print(name, filled, error, flush=True)
time.sleep(2)
