"""What a submission prints, kept for display only, and the stacks that a hanging one is made to print."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import deque
from pathlib import Path

import psutil

from hvdgrade.jail import Jail
from hvdgrade.processes import launchers

KEEP_OUTPUT_BYTES = 200_000


class Output:
    """What the submission prints: counted whole, kept at both ends."""

    def __init__(self):
        self.bytes, self.closed = 0, False
        self.head, self.tail = bytearray(), deque(maxlen=KEEP_OUTPUT_BYTES // 2)

    def read(self, stream) -> None:
        for _ in range(64):  # at most 4 MB a turn: a flood must not keep us from the clock
            try:
                chunk = os.read(stream.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                self.closed = True
                return
            self.bytes += len(chunk)
            room = KEEP_OUTPUT_BYTES // 2 - len(self.head)
            self.head += chunk[:room]
            self.tail.extend(chunk[room:])

    def text(self) -> str:
        """The output as plain text: no control characters, a mark where something was left out."""
        left_out = self.bytes - len(self.head) - len(self.tail)
        middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        text = (bytes(self.head) + middle + bytes(self.tail)).decode(errors="replace")
        return "".join(c for c in text if c == "\n" or c == "\t" or c.isprintable())


def ask_for_stacks(
    jail: Jail, process: subprocess.Popen, output: Output, seconds: float = 3
) -> None:
    """Let every rank print where it is: SIGABRT with Python's fault handler switched on.

    mpirun stands still until all have: it ends the others as soon as it sees that one has ended.
    """
    ranks = jail.rank_processes()
    # Of the submission's own: ranks whose mpirun has ended are this grader's children.
    started_them = [one for one in launchers(ranks) if one in jail.processes()]
    deadline = time.monotonic() + seconds
    for one in started_them:
        signalled(one, signal.SIGSTOP)
    for rank in ranks.values():
        signalled(rank, signal.SIGABRT)
    while any(map(is_there, ranks.values())) and time.monotonic() < deadline:
        output.read(process.stdout)
        time.sleep(0.05)
    for one in started_them:
        signalled(one, signal.SIGCONT)
    deadline = time.monotonic() + seconds
    while process.poll() is None and not output.closed and time.monotonic() < deadline:
        output.read(process.stdout)
        time.sleep(0.05)


def signalled(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def is_there(process: psutil.Process) -> bool:
    """Whether it has not ended; one that has waits for whoever started it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def stacks(output: str) -> dict[int, str]:
    """The stack of each rank's main thread from the fault handler's text, innermost call first."""
    found: dict[int, list[str]] = {}
    reading: set[int] = set()
    for line in output.splitlines():
        match = re.match(r"\[\d+,(\d{1,4})\]<std(?:err|out)>: ?(.*)", line)
        if not match:
            continue
        rank, text = int(match[1]), match[2]
        # The fault handler prints all threads; the main thread, where the script is, comes last.
        if re.match(r"(Current thread|Thread) 0x", text):
            found[rank] = []
            reading.add(rank)
        elif rank in reading and (frame := re.match(r'\s+File "(.*)", line (\d+) in (.*)', text)):
            found[rank].append(f"{Path(frame[1]).name}, line {frame[2]}, in {frame[3]}")
        elif text.strip():
            reading.discard(rank)
    return {rank: "\n".join(frames) for rank, frames in sorted(found.items()) if frames}
