"""What the processor offers, read from the operating system (stdlib only)."""

import os
from pathlib import Path

# Instructions that multiply bfloat16 matrices at more than float32's rate. Without them a bfloat16
# network is emulated and slower than float32.
BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})


def cpu_flags() -> frozenset[str]:
    """The instruction-set flags of the first processor (empty where /proc/cpuinfo has none)."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def cpu_has_bfloat16() -> bool:
    """True where the processor itself multiplies bfloat16 numbers (AMX or AVX-512 BF16)."""
    return bool(BFLOAT16_FLAGS & cpu_flags())


def usable_cores() -> int:
    """Number of cores that this process may run on (affinity respected)."""
    return len(os.sched_getaffinity(0))
