"""Checks of the machine: cores, memory, /dev/shm, disk, temporary folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hvdlab.doctor.answers import (
    CHECKOUT,
    FAILURE,
    OK,
    WARNING,
    Answer,
    ProgramOutput,
    counted,
    human,
    quoted,
    sudo,
)
from hvdlab.doctor.checks.environment import container_name, slurm_tasks
from hvdlab.doctor.checks.gpus import usable_gpus
from hvdlab.system.file_system import lacks
from hvdlab.system.hardware import available_memory, cpu_quota, physical_cores
from hvdlab.system.slurm_job import tasks_on_nodes

# Open MPI 5.0.11 asks for a file of this size there for each rank ("Space Requested: 16777216 B").
SHM_A_RANK = 16 << 20
# NCCL keeps its buffers between the GPUs of a machine there, too. How much it needs was not measured.
SHM_WITH_GPUS = 1 << 30
RANK_MEMORY = 2 << 30  # bytes
FREE_DISK = 1 << 30  # bytes
# Sockets of PyTorch's DataLoader workers lie in TMPDIR, and Linux takes 107 characters: 75 work and
# 76 end in "AF_UNIX path too long".
LONGEST_TMPDIR = 75
MOST_RANKS = 8  # the labs' global batch grows with the ranks


def ranks(outputs: dict[str, ProgramOutput]) -> int:
    """Return how many ranks suit this machine: one per GPU, else one per core, at least 2 and at most 8.

    Two ranks share a single GPU.
    """
    gpus = usable_gpus(outputs)
    return (gpus if gpus > 1 else 0) or slurm_tasks() or (2 if gpus else _ranks_on_cores())


def _ranks_on_cores() -> int:
    return max(2, min(MOST_RANKS, usable_cores()))


def ranks_here(outputs: dict[str, ProgramOutput]) -> int:
    """Return how many of these ranks start on this machine, which may be one of several nodes."""
    return min(ranks(outputs), max(tasks_on_nodes(), default=ranks(outputs)))


def cores(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that this process may use several cores without a quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    text = f"{allowed} of {os.cpu_count()} usable, {len(physical_cores())} of them physical"
    suited = counted(ranks(outputs), "rank")
    if quota and quota < allowed:
        text += f", and a quota of {quota:.2g} cores, so ranks and threads must wait"
        name = container_name()
        more = f"docker run --cpus={allowed} ..." if name == "docker" else ""
        return Answer(WARNING, f"{text}; {suited}", more)
    if allowed == 1:
        which = "taskset -pc 0-$(($(nproc --all) - 1)) $$" if os.cpu_count() > 1 else ""
        return Answer(
            WARNING, f"{text}: {suited} take turns, so no speed-up can be measured", which
        )
    return Answer(OK, f"{text}: {suited}")


def usable_cores() -> int:
    """Return the number of physical cores that this process may use, with affinity and quota."""
    cores = len(physical_cores())
    return max(1, min(cores, int(cpu_quota() or cores)))


def memory(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that there is enough memory for the ranks."""
    free = available_memory()
    there = ranks_here(outputs)
    need = there * RANK_MEMORY
    text = f"{human(free)} available"
    if free < need:
        text += f", and {counted(there, 'rank')} may need {human(need)}: the system may kill a rank"
        return Answer(WARNING, text, "ps -eo rss,pid,args --sort=-rss | head")
    return Answer(OK, text)


def shared_memory(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that /dev/shm has enough space for Open MPI and NCCL."""
    place, there = Path("/dev/shm"), ranks_here(outputs)
    need, size, who = there * SHM_A_RANK, "1G", counted(there, "rank")
    if usable_gpus(outputs):
        need, size, who = max(need, SHM_WITH_GPUS), "2G", f"{who} on GPUs"
    remount = f"{sudo()}mount -o remount,rw,size={size} /dev/shm"
    if container_name() in ("docker", "podman"):
        remount = f"{container_name()} run --shm-size={size.lower()} ..."
    if not place.is_dir():
        return Answer(WARNING, "/dev/shm does not exist: Open MPI must do without it", remount)
    free = shutil.disk_usage(place).free
    if not writable(place):
        return Answer(WARNING, "/dev/shm cannot be written: Open MPI must do without it", remount)
    if free < need:
        text = f"{human(free)} free in /dev/shm, and {who} ask for {human(need)}: "
        library = "NCCL and Open MPI" if usable_gpus(outputs) else "Open MPI warns that it"
        return Answer(WARNING, f"{text}{library} may be slow or abort", remount)
    return Answer(OK, f"{human(free)} free in /dev/shm")


def temporary_folder(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check TMPDIR, where Open MPI keeps the files of its session. Without it no rank starts."""
    name = os.environ.get("TMPDIR", "")
    if not name:
        place = Path(tempfile.gettempdir())
        return Answer(OK, f"{place} (TMPDIR is not set)")
    place = Path(name)
    if not place.exists():
        return Answer(WARNING, f"TMPDIR={name} does not exist", f"mkdir -p {quoted(name)}")
    if not place.is_dir() or not writable(place):
        return Answer(FAILURE, f"TMPDIR={name} cannot be written to", "export TMPDIR=/tmp")
    if len(name) > LONGEST_TMPDIR:
        text = f"TMPDIR has {len(name)} characters, and beyond {LONGEST_TMPDIR} DataLoader workers "
        return Answer(WARNING, f'{text}fail ("AF_UNIX path too long")', "export TMPDIR=/tmp")
    return Answer(OK, name)


def file_systems(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check that the folders in which the labs write have locks, links and permissions.

    A shared file system of a cluster may lack some of them. Without locks, `hvdlab` and `make setup` lock a
    file on this machine only.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = (Path.cwd(), cache, Path(os.environ.get("HVDLAB_DATA") or cache), CHECKOUT or cache)
    wrong = {str(place): ", ".join(lacks(place)) for place in dict.fromkeys(named) if lacks(place)}
    if not wrong:
        return Answer(
            OK, "locks, links and permissions work in the folders in which the labs write"
        )
    text = "; ".join(f"the file system of {place} has no {what}" for place, what in wrong.items())
    if "locks" in text:
        text += ": do not set up, download or grade there on two machines at the same time"
    return Answer(WARNING, text)


def disk(outputs: dict[str, ProgramOutput]) -> Answer:
    """Check the free space for records, checkpoints, data sets and temporary files."""
    places = {Path.cwd(), Path.home(), Path(os.environ.get("TMPDIR") or "/tmp")}
    places = sorted(place for place in places if place.is_dir())
    free = {place: shutil.disk_usage(place).free for place in places}
    least = min(free, key=free.get)
    text = f"{human(free[least])} free in {least}"
    if free[least] < FREE_DISK:
        fills = f"du -xh --max-depth=2 {quoted(least)} | sort -h | tail"
        return Answer(WARNING, f"{text}: records and checkpoints may not fit", fills)
    if not writable(Path.cwd()):
        text = f"this folder, {Path.cwd()}, cannot be written to: records would be lost"
        return Answer(WARNING, text, f"cd {quoted(Path.home())}")
    return Answer(OK, text)


def writable(place: Path) -> bool:
    """Return whether a file can be written in a folder."""
    try:
        with tempfile.TemporaryFile(dir=str(place)) as file:
            file.write(b"x")
        return True
    except OSError:
        return False
