"""Ranks that do not end by themselves, for tests that end a run."""

import os
import subprocess
import time
from pathlib import Path

import psutil

# Each rank starts a child, ignores SIGTERM, and writes the process numbers of both to a file.
STAY = """\
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "100"])
part = pathlib.Path(sys.argv[1], f"{os.getpid()}.part")
part.write_text(f"{os.getpid()} {child.pid}")
part.rename(part.with_suffix(".told")); time.sleep(100)  # one line: from then on a rank is in it
"""
STAYS_IN_LINE = len(STAY.splitlines())
# Saves on SIGTERM.
SAVE = """\
import os, pathlib, signal, sys, time

def save(*_):
    pathlib.Path(sys.argv[1], "saved").write_text("all that was learnt")
    sys.exit()

signal.signal(signal.SIGTERM, save)
for part in range(4):  # what `wait_until_told` waits for
    pathlib.Path(sys.argv[1], f"{part}.told").write_text(str(os.getpid()))
time.sleep(100)
"""


def told(folder: Path) -> list[int]:
    """Return the processes whose numbers are in a folder."""
    return [int(n) for path in folder.glob("*.told") for n in path.read_text().split()]


def wait_until_told(folder: Path, process: subprocess.Popen) -> None:
    """Wait until two ranks and their children run."""
    while len(told(folder)) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def end_when_told(words: list, number: int, folder: Path, **environment) -> int:
    """Run a command, signal it when its ranks have written their numbers, return its exit code."""
    process = subprocess.Popen(words, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        wait_until_told(folder, process)
        process.send_signal(number)
        return process.wait(60)
    finally:
        process.kill()


def gone(numbers: list[int], seconds: float = 10) -> bool:
    """Return whether these processes have ended, or end within a short time."""

    def alive(n):
        try:
            return psutil.Process(n).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    end = time.monotonic() + seconds
    while any(map(alive, numbers)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, numbers))
