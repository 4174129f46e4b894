"""Which device each rank of a run computes on, as the kernel and the driver report it from outside.

A process that uses a GPU has its device file open. The driver opens those of all visible GPUs, so where a
rank sees several, `nvidia-smi` tells on which of them it computes. Nothing here comes from the script.
"""

import os
import re
import stat
import subprocess
import time
from pathlib import Path

import psutil

from hvdgrade.run.owner_rights import as_owner
from hvdgrade.sandbox.gpu_access import device_files

PROCESSOR, UNKNOWN = "processor", "unknown"
GPU_FILE = re.compile(r".*/(nvidia[0-9]+|dxg)")
DRIVER = Path("/proc/driver/nvidia/gpus")
QUERY = ("nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")
QUERY_SECONDS = 5.0  # from one query to the next: a query may take a second


def gpu_numbers() -> dict[int, str]:
    """The device number of each GPU's file -> its path."""
    return {os.stat(path).st_rdev: path for path in device_files() if GPU_FILE.fullmatch(path)}


def opened(process: int, numbers: dict[int, str]) -> set[str] | None:
    """The GPUs' device files that a process has open; None where it closes its files to the grader."""

    def look() -> set[str]:
        found = set()
        for entry in os.scandir(f"/proc/{process}/fd"):
            try:
                status = os.stat(entry.path)
            except FileNotFoundError:
                continue  # closed meanwhile
            if stat.S_ISCHR(status.st_mode) and status.st_rdev in numbers:
                found.add(numbers[status.st_rdev])
        return found

    try:
        return as_owner(process, look)
    except OSError:
        return None


def names() -> dict[str, str]:
    """UUID and device file of each GPU -> its model with its UUID, as the driver's files have them."""
    found = {}
    for file in sorted(DRIVER.glob("*/information")):
        lines = (line.partition(":") for line in file.read_text(errors="replace").splitlines())
        facts = {name.strip(): value.strip() for name, _, value in lines}
        if uuid := facts.get("GPU UUID"):
            name = f"{facts.get('Model', 'GPU')} ({uuid})"
            found |= {uuid: name, f"/dev/nvidia{facts.get('Device Minor')}": name}
    return found


class DeviceWatch:
    """Collects the device of each rank while a run lasts. A context: it leaves no query behind."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.opened: dict[int, set[str]] = {}  # rank -> device files
        self.computes: dict[int, set[str]] = {}  # rank -> UUIDs
        self.pids: dict[int, int] = {}  # process -> rank
        self.numbers = gpu_numbers()
        self.query: subprocess.Popen | None = None
        self.asked = 0.0

    def __enter__(self) -> "DeviceWatch":
        return self

    def sample(self, ranks: dict[int, psutil.Process]) -> None:
        """Look at the ranks' processes once more."""
        for rank, process in ranks.items():
            files = opened(process.pid, self.numbers)
            if files is not None:
                self.opened[rank] = self.opened.get(rank, set()) | files
            self.pids[process.pid] = rank
        if self.query and self.query.poll() is not None:
            self.read_query()
        if any(self.opened.values()) and not self.query:
            if time.monotonic() - self.asked >= QUERY_SECONDS:
                self.ask()

    def ask(self) -> None:
        """Start a query without waiting for it, because a slow driver must not delay the measurements."""
        self.asked = time.monotonic()
        try:
            self.query = subprocess.Popen(
                QUERY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
        except OSError:
            self.query = None

    def read_query(self) -> None:
        answer = self.query.communicate()[0].decode(errors="replace")
        self.query = None
        for line in answer.splitlines():
            process, _, uuid = (word.strip() for word in line.partition(","))
            if process.isdecimal() and int(process) in self.pids and uuid:
                self.computes.setdefault(self.pids[int(process)], set()).add(uuid)

    def found(self) -> list[str]:
        """The device of each rank: a GPU's name, "processor", or "unknown"."""
        known = names()
        devices = []
        for rank in range(self.ranks):
            gpus = self.computes.get(rank) or self.opened.get(rank)
            if gpus:
                devices.append(" or ".join(known.get(gpu, gpu) for gpu in sorted(gpus)))
            else:
                devices.append(UNKNOWN if gpus is None else PROCESSOR)
        return devices

    def __exit__(self, *exception: object) -> None:
        if self.query:
            self.query.kill()
            self.query.communicate()
            self.query = None
