"""Facts about this machine: cores and memory from the operating system, GPUs from nvidia-smi.

It uses the standard library only.
"""

from __future__ import annotations  # the doctor reads this with an old Python, too

import contextlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path


def cpu_facts() -> dict[str, str]:
    """Return the facts of /proc/cpuinfo about the first processor, such as "flags"; {} without it."""
    try:
        first = Path("/proc/cpuinfo").read_text("utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    return {
        name.strip(): value.strip()
        for name, _, value in (x.partition(":") for x in first.splitlines())
    }


def cpu_is_fast_at_bfloat16() -> bool:
    """Return whether the assessment network trains faster in bfloat16 than in float32 on this processor.

    It does with AMX, and with AVX-512 BF16 on AMD processors. A Xeon with AVX-512 BF16 but without AMX, for
    example in a virtual machine that does not pass AMX on, is slower in bfloat16. `hvdlab bench precision`
    measures both. The figures are in the README.md of hvdlab.
    """
    facts = cpu_facts()
    flags = facts.get("flags", "").split()
    return "amx_bf16" in flags or (
        "avx512_bf16" in flags and facts.get("vendor_id") == "AuthenticAMD"
    )


def usable_cores() -> int:
    """Return how many cores this process may use, according to its affinity and the quota of its cgroup."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, int(cpu_quota() or cores)))


def seconds_without_core() -> float:
    """Return how long this process's threads waited for a core, in sum; 0 if the kernel does not count."""
    nanoseconds = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            nanoseconds += int(path.read_text(encoding="utf-8").split()[1])
    return nanoseconds / 1e9


def physical_cores(threads: Iterable[int] | None = None) -> list[list[int]]:
    """Return hardware threads, grouped by core. Threads of the same core slow each other down.

    Args:
        threads: numbers of hardware threads. Default: all that this process may use.
    """
    threads = os.sched_getaffinity(0) if threads is None else threads

    def place(thread: int) -> tuple:
        topology = Path(f"/sys/devices/system/cpu/cpu{thread}/topology")
        try:
            names = ("physical_package_id", "core_id")
            return tuple(int((topology / name).read_text("utf-8")) for name in names)
        except (OSError, ValueError):
            return (0, thread)

    cores: dict[tuple, list[int]] = {}
    for thread in sorted(threads):
        cores.setdefault(place(thread), []).append(thread)
    return [cores[key] for key in sorted(cores)]


def cpu_quota() -> float:
    """Return how many cores the quota of the cgroup allows, such as 1.5; 0 without a limit."""
    for limit, period in (
        ("/sys/fs/cgroup/cpu.max", None),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    ):
        try:
            words = Path(limit).read_text("utf-8").split()
            words += Path(period).read_text("utf-8").split() if period else []
            return max(0.0, int(words[0]) / int(words[1]))
        except (OSError, ValueError, IndexError, ZeroDivisionError):
            pass  # no such file, or "max"
    return 0.0


def available_memory() -> int:
    """Return the available memory in bytes: of the system, or of the cgroup if that is less."""
    lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / f"memory.{n}").read_text("utf-8")) for n in ("max", "current"))
        # It includes the cache of files, which the kernel frees before it kills a process.
        lines = map(str.split, (group / "memory.stat").read_text("utf-8").splitlines())
        used -= sum(int(number) for name, number in lines if name == "inactive_file")
        free = min(free, limit - used)
    except (OSError, ValueError):
        pass  # no such file, or "max"
    return max(0, free)


def gpu_compute_capability() -> tuple[int, int] | None:
    """Return the lowest compute capability of the NVIDIA GPUs of this machine, such as (9, 0).

    It is None if a program started here cannot use any GPU, also because of $CUDA_VISIBLE_DEVICES.
    """
    if not gpus():
        return None
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
        return min(tuple(int(part) for part in line.split(".")) for line in answer.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def gpus() -> int:
    """Return how many NVIDIA GPUs a program started here can use, according to $CUDA_VISIBLE_DEVICES."""
    return len(visible_gpus())


def visible_gpus() -> list[str]:
    """Return the UUIDs of the NVIDIA GPUs that a program started here can use.

    The order is that of $CUDA_VISIBLE_DEVICES if it is set, else that of nvidia-smi. CUDA uses the same order
    if CUDA_DEVICE_ORDER=PCI_BUS_ID. The result is [] if there is no nvidia-smi, or no driver that answers
    within 30 s.

    If a GPU is divided into slices (MIG), the list contains its slices ("MIG-...") instead of the GPU
    ("GPU-..."). A process can use only one slice, and CUDA shows it only the first of several. So each rank
    must choose its slice with CUDA_VISIBLE_DEVICES.
    """
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    present: list[list[str]] = []  # per GPU: its own UUID and those of its slices
    for line in answer.splitlines():
        if line.startswith("GPU "):
            present.append([_uuid(line) or f"GPU-{len(present)}"])
        elif present and (name := _uuid(line)):
            present[-1].append(name)
    usable = [gpu[1:] or gpu for gpu in present]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [name for gpu in usable for name in gpu]
    found: list[str] = []
    for word in (word.strip() for word in named.split(",")):
        if word.isdigit() and int(word) < len(usable):
            found += usable[int(word)]
        elif word.startswith(("GPU-", "MIG-")):  # a UUID or its first characters
            found += next(
                (
                    usable[i] if name == gpu[0] else [name]
                    for i, gpu in enumerate(present)
                    for name in gpu
                    if name.startswith(word)
                ),
                [],
            )
        else:
            break  # CUDA ignores everything after an unknown name, such as -1
    return list(dict.fromkeys(found))


def _uuid(line: str) -> str:
    """Return the UUID in a line such as `GPU 0: NVIDIA H100 (UUID: GPU-5d1c...)`; "" if there is none."""
    return line.partition("(UUID: ")[2].rstrip(") ")
