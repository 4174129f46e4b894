"""Leave a daemon behind: a process that init adopts after a double fork, in its own session."""

import os
import signal
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        null = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        time.sleep(120)
    os._exit(0)
os.wait()
