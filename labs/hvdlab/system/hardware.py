"""What this machine offers: processor cores from the operating system, GPUs from nvidia-smi (stdlib only)."""

from __future__ import annotations  # the doctor reads this with an old Python, too

import os
import subprocess
from pathlib import Path


def cpu_facts() -> dict[str, str]:
    """What /proc/cpuinfo says of the first processor, such as "vendor_id" and "flags"; {} without it."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    return {
        name.strip(): value.strip()
        for name, _, value in (x.partition(":") for x in first.splitlines())
    }


def cpu_is_fast_at_bfloat16() -> bool:
    """True where the assessment network trains faster in bfloat16 than in float32.

    With AMX it does, and with AVX-512 BF16 on AMD. A Xeon that has AVX-512 BF16 alone, as in a virtual
    machine to which AMX is not given, is slower at it. `hvdlab bench precision` measures both; figures:
    README.md beside this file.
    """
    facts = cpu_facts()
    flags = facts.get("flags", "").split()
    return "amx_bf16" in flags or (
        "avx512_bf16" in flags and facts.get("vendor_id") == "AuthenticAMD"
    )


def usable_cores() -> int:
    """Cores that this process may use: affinity and the quota of its control group respected."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, int(cpu_quota() or cores)))


def physical_cores(threads=None) -> list[list[int]]:
    """Hardware threads, those of one core together: on a core of two, what one does slows the other.

    Args:
        threads: their numbers. Default: those that this process may use.
    """
    threads = os.sched_getaffinity(0) if threads is None else threads

    def place(thread: int) -> tuple:
        topology = Path(f"/sys/devices/system/cpu/cpu{thread}/topology")
        try:
            names = ("physical_package_id", "core_id")
            return tuple(int((topology / name).read_text()) for name in names)
        except (OSError, ValueError):
            return (0, thread)

    cores: dict[tuple, list[int]] = {}
    for thread in sorted(threads):
        cores.setdefault(place(thread), []).append(thread)
    return [cores[key] for key in sorted(cores)]


def cpu_quota() -> float:
    """Cores' worth of time that the control group allows; 0 without a limit."""
    for limit, period in (
        ("/sys/fs/cgroup/cpu.max", None),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    ):
        try:
            words = Path(limit).read_text().split()
            words += Path(period).read_text().split() if period else []
            return max(0.0, int(words[0]) / int(words[1]))
        except (OSError, ValueError, IndexError, ZeroDivisionError):
            pass  # no such file, or "max"
    return 0.0


def gpu_compute_capability() -> tuple[int, int] | None:
    """The lowest compute capability of the NVIDIA GPUs here, such as (9, 0).

    None where a program started here can use no GPU ($CUDA_VISIBLE_DEVICES respected).
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
    """Number of NVIDIA GPUs that a program started here can use ($CUDA_VISIBLE_DEVICES respected)."""
    return len(visible_gpus())


def visible_gpus() -> list[str]:
    """UUIDs of the NVIDIA GPUs that a program started here can use ($CUDA_VISIBLE_DEVICES respected).

    The order is that of $CUDA_VISIBLE_DEVICES, else nvidia-smi's, which CUDA shares where
    CUDA_DEVICE_ORDER=PCI_BUS_ID. [] without nvidia-smi or a driver that answers within 30 s.

    Where a GPU is divided into slices (MIG), its slices take its place: "MIG-..." in place of "GPU-...".
    A process uses one slice at most, and CUDA shows it only the first of several: a rank chooses its
    slice by CUDA_VISIBLE_DEVICES.
    """
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    present: list[list[str]] = []  # of each GPU its own UUID and those of its slices
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
        elif word.startswith(("GPU-", "MIG-")):  # a whole UUID, or its first characters
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
            break  # CUDA reads no further than a name that it does not know, such as -1
    return list(dict.fromkeys(found))


def _uuid(line: str) -> str:
    """Of a line such as `GPU 0: NVIDIA H100 (UUID: GPU-5d1c...)`; "" without one."""
    return line.partition("(UUID: ")[2].rstrip(") ")
