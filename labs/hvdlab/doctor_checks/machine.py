"""What the machine has: GPUs, cores and slots, memory, /dev/shm, disk, the temporary folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hvdlab.allocation import tasks_on_nodes
from hvdlab.doctor_checks import (
    FAILURE,
    OK,
    WARNING,
    Answer,
    build_horovod,
    counted,
    human,
    install,
    quoted,
    sudo,
)
from hvdlab.doctor_checks.surroundings import container_name, slurm_tasks
from hvdlab.hardware import cpu_quota, physical_cores

# Open MPI 5.0.11 asks for a file of this size there for each rank ("Space Requested: 16777216 B").
SHM_A_RANK = 16 << 20
RANK_MEMORY = 2 << 30  # bytes
FREE_DISK = 1 << 30  # bytes
# Sockets of PyTorch's DataLoader workers lie in TMPDIR, and Linux takes 107 characters: 75 work and
# 76 end in "AF_UNIX path too long".
LONGEST_TMPDIR = 75
MOST_RANKS = 8  # the labs' global batch grows with the ranks


def gpus(said) -> Answer:
    """GPUs, and whether PyTorch sees them and Horovod can use them."""
    there = [line.strip() for line in said["nvidia-smi"].out.splitlines() if line.strip()]
    if said["nvidia-smi"].code != 0 or not there:
        if Path("/proc/driver/nvidia/gpus").is_dir():
            text = f"the driver is loaded and nvidia-smi fails: {said['nvidia-smi'].last_words()}"
            return Answer(WARNING, text, "nvidia-smi")
        return Answer(OK, "none: the labs run on the cores")
    text = f"{len(there)}: {there[0]}"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    torch = said["torch"].answer()
    if hidden is not None and torch and torch["cuda"] and torch["gpus"] < len(there):
        text += f"; CUDA_VISIBLE_DEVICES={hidden!r} leaves {torch['gpus']}"
        if "SLURM_JOB_ID" not in os.environ:
            return Answer(WARNING, text, "unset CUDA_VISIBLE_DEVICES")
        text += ", the share of this job"  # the others may be somebody else's
        if not torch["gpus"]:
            return Answer(WARNING, text, "salloc --ntasks=2 --gpus=2")
    if torch and not torch["gpus"]:
        what = f"CUDA {torch['cuda']}" if torch["cuda"] else "the CPU only"
        if again := install("--force-reinstall", "torch"):
            again += f" && {build_horovod()}"
        return Answer(WARNING, f"{text}; torch is built for {what} and sees none", again)
    if not usable_gpus(said):
        text += "; Horovod is built without NCCL: gradients would not go from GPU to GPU"
        return Answer(WARNING, text, build_horovod())
    return Answer(OK, f"{text}; Horovod uses them with NCCL")


def usable_gpus(said) -> int:
    """How many GPUs a framework sees whose half of Horovod can reduce on them."""
    found = [said[name].answer() for name in ("torch", "tensorflow")]
    return max(one.get("gpus", 0) if one.get("horovod", {}).get("nccl") else 0 for one in found)


def ranks(said) -> int:
    """How many ranks suit this machine: a GPU each, else a core each, at least 2 and at most 8."""
    return usable_gpus(said) or slurm_tasks() or max(2, min(MOST_RANKS, usable_cores()))


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
    need = there * SHM_A_RANK
    remount = f"{sudo()}mount -o remount,rw,size=1G /dev/shm"
    if container_name() in ("docker", "podman"):
        remount = f"{container_name()} run --shm-size=1g ..."
    if not place.is_dir():
        return Answer(WARNING, "/dev/shm is not there: Open MPI must do without it", remount)
    free = shutil.disk_usage(place).free
    if not writable(place):
        return Answer(WARNING, "/dev/shm cannot be written: Open MPI must do without it", remount)
    if free < need:
        text = (
            f"{human(free)} free in /dev/shm, and {counted(there, 'rank')} ask for {human(need)}: "
        )
        return Answer(WARNING, text + "Open MPI warns that it may be slow or abort", remount)
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
