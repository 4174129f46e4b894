"""End the process whose id is the first argument, and count the processes that accept a signal."""

import os
import signal
import sys

try:
    os.kill(int(sys.argv[1]), signal.SIGTERM)
except OSError as error:
    print(error)
reached = 0
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        os.kill(int(name), 0)  # signal 0 only checks whether a signal is allowed
        reached += 1
    except OSError:
        pass
print("could signal", reached, "processes")
