"""Read the output of a submission, and make a hanging submission print its Python stacks.

The output is only displayed. It never influences the verdict.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import deque
from pathlib import Path
from typing import IO

import psutil

from hvdgrade.run.processes import launchers
from hvdgrade.run.sandboxed_run import SandboxedRun

KEEP_OUTPUT_BYTES = 200_000


class CapturedOutput:
    """The output of a submission: all bytes are counted, and the start and the end are kept."""

    def __init__(self) -> None:
        self.bytes, self.closed = 0, False
        self.head, self.tail = bytearray(), deque(maxlen=KEEP_OUTPUT_BYTES // 2)

    def read(self, stream: IO[bytes]) -> None:
        """Read what is there now from a non-blocking pipe; `closed` is True after its end."""
        for _ in range(64):  # at most 4 MB per call, so that a flood does not delay time limits
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
        """Return the output as plain text, without control characters.

        A marker shows where the middle of a long output was left out.
        """
        left_out = self.bytes - len(self.head) - len(self.tail)
        middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        text = (bytes(self.head) + middle + bytes(self.tail)).decode(errors="replace")
        return "".join(c for c in text if c == "\n" or c == "\t" or c.isprintable())


def ask_for_stacks(
    jail: SandboxedRun, process: subprocess.Popen, output: CapturedOutput, seconds: float = 3
) -> None:
    """Make every rank print its Python stacks, by SIGABRT with Python's fault handler enabled.

    mpirun is stopped (SIGSTOP) until all ranks have printed, because it ends the other ranks as soon
    as it notices that one rank has ended.
    """
    ranks = jail.rank_processes()
    # Only processes of the submission: ranks whose mpirun has ended are children of this grader.
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
    """Return whether the process still runs. A zombie has ended and only waits for its parent."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def stacks(output: str) -> dict[int, str]:
    """Return the stack of each rank's main thread: rank -> text, with the innermost call first.

    The stacks are parsed from the text that Python's fault handler printed into `output`.
    """
    found: dict[int, list[str]] = {}
    reading: set[int] = set()
    for line in output.splitlines():
        match = re.match(r"\[\d+,(\d{1,4})\]<std(?:err|out)>: ?(.*)", line)
        if not match:
            continue
        rank, text = int(match[1]), match[2]
        # The fault handler prints all threads. The main thread, which runs the script, comes last.
        if re.match(r"(Current thread|Thread) 0x", text):
            found[rank] = []
            reading.add(rank)
        elif rank in reading and (frame := re.match(r'\s+File "(.*)", line (\d+) in (.*)', text)):
            found[rank].append(f"{Path(frame[1]).name}, line {frame[2]}, in {frame[3]}")
        elif text.strip():
            reading.discard(rank)
    return {rank: "\n".join(frames) for rank, frames in sorted(found.items()) if frames}
