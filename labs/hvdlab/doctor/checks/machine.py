"""What the machine has: cores and slots, memory, /dev/shm, disk, the temporary folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hvdlab.doctor.answers import FAILURE, OK, WARNING, Answer, counted, human, quoted, sudo
from hvdlab.doctor.checks.environment import container_name, slurm_tasks
from hvdlab.doctor.checks.gpus import usable_gpus
from hvdlab.system.hardware import cpu_quota, physical_cores
from hvdlab.system.slurm_job import tasks_on_nodes

# Open MPI 5.0.11 asks for a file of this size there for each rank ("Space Requested: 16777216 B").
SHM_A_RANK = 16 << 20
# NCCL keeps its buffers between the GPUs of a machine there as well. How much it takes was not measured.
SHM_WITH_GPUS = 1 << 30
RANK_MEMORY = 2 << 30  # bytes
FREE_DISK = 1 << 30  # bytes
# Sockets of PyTorch's DataLoader workers lie in TMPDIR, and Linux takes 107 characters: 75 work and
# 76 end in "AF_UNIX path too long".
LONGEST_TMPDIR = 75
MOST_RANKS = 8  # the labs' global batch grows with the ranks


def ranks(said) -> int:
    """How many ranks suit this machine: one per GPU, else one per core, at least 2 and at most 8.

    Two ranks share a single GPU.
    """
    gpus = usable_gpus(said)
    return (gpus if gpus > 1 else 0) or slurm_tasks() or (2 if gpus else _ranks_on_cores())


def _ranks_on_cores() -> int:
    return max(2, min(MOST_RANKS, usable_cores()))


def ranks_here(said) -> int:
    """Those of them on this machine, which may be one of several nodes."""
    return min(ranks(said), max(tasks_on_nodes(), default=ranks(said)))


def cores(said) -> Answer:
    allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    text = f"{allowed} of {os.cpu_count()} usable, {len(physical_cores())} of them physical"
    suited = counted(ranks(said), "rank")
    if quota and quota < allowed:
        text += f", and a quota of {quota:.2g}: this machine lets ranks and threads wait"
        name = container_name()
        more = f"docker run --cpus={allowed} ..." if name == "docker" else ""
        return Answer(WARNING, f"{text}; {suited}", more)
    if allowed == 1:
        which = "taskset -pc 0-$(($(nproc --all) - 1)) $$" if os.cpu_count() > 1 else ""
        return Answer(WARNING, f"{text}: {suited} take turns, no speed-up to measure", which)
    return Answer(OK, f"{text}: {suited}")


def usable_cores() -> int:
    """Cores that this process may use: affinity, hyper-threads not counted, quota of the group."""
    cores = len(physical_cores())
    return max(1, min(cores, int(cpu_quota() or cores)))


def memory(said) -> Answer:
    free = available_memory()
    there = ranks_here(said)
    need = there * RANK_MEMORY
    text = f"{human(free)} available"
    if free < need:
        text += f", and {counted(there, 'rank')} may need {human(need)}: one may be killed"
        return Answer(WARNING, text, "ps -eo rss,pid,args --sort=-rss | head")
    return Answer(OK, text)


def available_memory() -> int:
    """Bytes: what the kernel could give, or what the control group still allows if that is less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / f"memory.{n}").read_text()) for n in ("max", "current"))
        # Files that were read are in it too, and the kernel gives them up before it kills anybody.
        lines = map(str.split, (group / "memory.stat").read_text().splitlines())
        used -= sum(int(number) for name, number in lines if name == "inactive_file")
        free = min(free, limit - used)
    except (OSError, ValueError):
        pass  # no such file, or "max"
    return max(0, free)


def shared_memory(said) -> Answer:
    place, there = Path("/dev/shm"), ranks_here(said)
    need, size, who = there * SHM_A_RANK, "1G", counted(there, "rank")
    if usable_gpus(said):
        need, size, who = max(need, SHM_WITH_GPUS), "2G", f"{who} on GPUs"
    remount = f"{sudo()}mount -o remount,rw,size={size} /dev/shm"
    if container_name() in ("docker", "podman"):
        remount = f"{container_name()} run --shm-size={size.lower()} ..."
    if not place.is_dir():
        return Answer(WARNING, "/dev/shm is not there: Open MPI must do without it", remount)
    free = shutil.disk_usage(place).free
    if not writable(place):
        return Answer(WARNING, "/dev/shm cannot be written: Open MPI must do without it", remount)
    if free < need:
        text = f"{human(free)} free in /dev/shm, and {who} ask for {human(need)}: "
        library = "NCCL and Open MPI" if usable_gpus(said) else "Open MPI warns that it"
        return Answer(WARNING, f"{text}{library} may be slow or abort", remount)
    return Answer(OK, f"{human(free)} free in /dev/shm")


def temporary_folder(said) -> Answer:
    """Open MPI keeps its session there: without it no rank starts."""
    name = os.environ.get("TMPDIR", "")
    if not name:
        place = Path(tempfile.gettempdir())
        return Answer(OK, f"{place} (TMPDIR is not set)")
    place = Path(name)
    if not place.exists():
        return Answer(WARNING, f"TMPDIR={name} is not there", f"mkdir -p {quoted(name)}")
    if not place.is_dir() or not writable(place):
        return Answer(FAILURE, f"TMPDIR={name} cannot be written to", "export TMPDIR=/tmp")
    if len(name) > LONGEST_TMPDIR:
        text = f"TMPDIR has {len(name)} characters, and beyond {LONGEST_TMPDIR} DataLoader workers "
        return Answer(WARNING, f'{text}fail ("AF_UNIX path too long")', "export TMPDIR=/tmp")
    return Answer(OK, name)


def disk(said) -> Answer:
    """Room for records and checkpoints here, for data sets, and for what is temporary."""
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
    try:
        with tempfile.TemporaryFile(dir=str(place)) as file:
            file.write(b"x")
        return True
    except OSError:
        return False
