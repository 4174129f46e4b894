"""Process 1 of a container: run a command for at most SECONDS, and write to a file which signals arrived.

python autograder.py SIGNALS SECONDS COMMAND ARGUMENTS
"""

import signal
import subprocess
import sys
from pathlib import Path

arrived = []
signal.signal(signal.SIGUSR1, lambda number, frame: arrived.append(number))
place, seconds, *command = sys.argv[1:]
answer = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=float(seconds))
Path(place).write_text(" ".join(map(str, arrived)), encoding="utf-8")
sys.exit(answer.returncode)
