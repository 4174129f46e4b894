"""Ends the process of its argument, and counts what else it could signal."""

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
        os.kill(int(name), 0)  # asks whether it may, and does nothing
        reached += 1
    except OSError:
        pass
print("could signal", reached, "processes")
