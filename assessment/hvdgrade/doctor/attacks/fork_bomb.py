"""Start as many processes as the sandbox allows, up to the number in the first argument."""

import os
import sys
import time

started = 0
try:
    while started < int(sys.argv[1]):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        started += 1
finally:
    print("started", started, flush=True)
time.sleep(2)  # keeps all processes alive at the same time
