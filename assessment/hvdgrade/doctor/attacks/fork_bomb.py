"""Starts as many processes as it is allowed to, up to the number of its argument."""

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
time.sleep(2)  # so that they are there together
