"""Decide whether Horovod is built for GPUs, and with which CUDA toolkit and which NCCL.

    .venv/bin/python docker/cuda_build.py     # prints shell assignments; build_horovod.sh evaluates them

A build with NCCL needs four things of the same CUDA major version: torch, the compiler nvcc, NCCL's header
and library, and at run time the driver. If one is missing, one sentence says so, and Horovod is built for
CPUs. The course's scripts then exchange gradients through host memory. Standard library only.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpu_driver import nvidia_smi

LIMIT_SECONDS = 60  # for every program that is run here
# The CUDA 13 compiler in packages of PyPI. Those for CUDA 12 hold ptxas and no nvcc.
COMPILER_PACKAGES = (
    *("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm"),
    *("nvidia-cuda-cccl", "nvidia-cuda-runtime", "nvidia-nvtx"),
)
SYSTEM_NVCC = "/usr/local/cuda/bin/nvcc"  # if it is not on PATH
SYSTEM_NCCL = ("/usr", "/usr/local", "/usr/local/cuda")
# 1: fetch the compiler although this machine has no driver (a login node)
FETCH = "HVDLAB_FETCH_NVCC"


@dataclass(frozen=True)
class Build:
    """The settings of a Horovod build.

    Attributes:
        device: "nccl" or "cpu".
        why: the reason for the user, one sentence without a full stop.
        cuda_home: folder of the CUDA toolkit; empty if its compiler must be fetched.
        compiler: packages of the compiler to fetch, as pip requirements.
        nccl_home: folder with include/nccl.h.
        nccl_library: file to link with.
        search: folders in which the built libraries look for MPI, torch, TensorFlow, NCCL and CUDA's
            runtime (RUNPATH).
    """

    device: str
    why: str
    cuda_home: str = ""
    compiler: tuple[str, ...] = ()
    nccl_home: str = ""
    nccl_library: str = ""
    search: tuple[str, ...] = ()


def decide(torch_cuda: str, torch_folder: str) -> Build:
    """Return the build for this machine and this Python.

    Args:
        torch_cuda: `torch.version.cuda`, such as "13.0"; empty for a CPU build, or without torch.
        torch_folder: the folder of torch's package; empty without torch.
    """
    folders = [*mpi(), f"{torch_folder}/lib" if torch_folder else "", packaged("tensorflow")]
    search = tuple(run_path(folder) for folder in folders if folder)
    if not torch_cuda:
        return Build("cpu", "no CUDA build of torch", search=search)
    major = torch_cuda.partition(".")[0]
    found = nccl()
    if not found:
        where = "name its folder in NCCL_HOME"
        return Build("cpu", f"no NCCL with its header nccl.h found; {where}", search=search)
    nccl_home, library = found
    home, version = toolkit()
    compiler: tuple[str, ...] = ()
    if version.partition(".")[0] != major:
        have = f"{home} has CUDA {version}" if home else "no CUDA compiler (nvcc) on PATH"
        if major != "13":
            need = f"torch needs a CUDA {major} toolkit, and PyPI has no nvcc for it: install one"
            return Build("cpu", f"{have}; {need}", search=search)
        if not (nvidia_smi() or os.environ.get(FETCH) == "1"):
            return Build(
                "cpu", f"{have}, and no NVIDIA driver; {FETCH}=1 builds all the same", search=search
            )
        home = ""
        compiler = tuple(f"{name}=={torch_cuda}.*" for name in COMPILER_PACKAGES)
    else:
        have = f"CUDA compiler in {home}"
    runtime = [folder for folder in cuda_runtime(major) if Path(folder).is_dir()]
    search += tuple(map(run_path, [str(Path(library).parent), *runtime]))
    have = "CUDA compiler from PyPI" if compiler else have
    why = f"{have}, NCCL in {nccl_home}, torch for CUDA {torch_cuda}"
    return Build("nccl", why, home, compiler, nccl_home, library, tuple(dict.fromkeys(search)))


def toolkit() -> tuple[str, str]:
    """Return (folder, version) of the CUDA toolkit; ("", "") without a toolkit.

    The nvcc on PATH may be a wrapper or a link, so the folder comes from the output of the compiler itself.
    """
    for home in map(os.environ.get, ("HOROVOD_CUDA_HOME", "CUDA_HOME")):
        if home and (version := _nvcc_version(f"{home}/bin/nvcc")):
            return home, version
    for nvcc in filter(None, (shutil.which("nvcc"), SYSTEM_NVCC)):
        text = _output(nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null")
        top = re.search(r"^#\$ TOP=(.+)$", text, re.MULTILINE)
        for folder in (top[1].strip() if top else "", Path(nvcc).resolve().parents[1]):
            home = str(Path(folder).resolve())
            if folder and (version := _nvcc_version(f"{home}/bin/nvcc")):
                return home, version
    return "", ""


def mpi() -> list[str]:
    """Return the folders of Open MPI's libraries if it is outside this environment (a module, a base)."""
    own = Path(sysconfig.get_path("platlib")).resolve().parents[1]  # already in RUNPATH
    return [
        folder
        for folder in _output("mpicxx", "--showme:libdirs").split()
        if Path(folder).is_dir() and Path(folder).resolve() != own
    ]


def nccl() -> tuple[str, str] | None:
    """Return (folder, library) of NCCL: named by the user, else loaded by torch, else of the system."""
    named = [os.environ.get(name, "") for name in ("HOROVOD_NCCL_HOME", "NCCL_HOME")]
    for home in filter(None, [*named, packaged("nvidia.nccl"), *SYSTEM_NCCL]):
        if not Path(home, "include/nccl.h").is_file():
            continue
        for folder in ("lib", "lib64", f"lib/{sysconfig.get_config_var('MULTIARCH')}"):
            for name in ("libnccl.so", "libnccl.so.2"):  # PyPI's package has only the second
                if (library := Path(home, folder, name)).exists():
                    return home, str(library)
    return None


def cuda_runtime(major: str) -> list[str]:
    """Return the folders of PyPI's CUDA runtime, which comes with torch.

    A toolkit's runtime is linked statically.
    """
    names = {"13": "nvidia.cu13", "12": "nvidia.cuda_runtime"}
    folder = packaged(names.get(major, ""))
    return [f"{folder}/lib"] if folder else []


def packaged(name: str) -> str:
    """Return the folder of a package of this environment; empty if it is not installed."""
    try:
        found = find_spec(name) if name else None
    except ImportError:
        found = None
    return next(iter(found.submodule_search_locations or ()), "") if found else ""


def run_path(folder: str) -> str:
    """Return a folder as an entry of RUNPATH.

    In the same site-packages it is relative to horovod/torch, so that it stays valid when the environment
    is copied or the wheel is installed into another one. Other folders are absolute.
    """
    packages = Path(sysconfig.get_path("platlib")).resolve()
    place = Path(folder).resolve()
    if not place.is_relative_to(packages):
        return str(place)
    return f"$ORIGIN/../../{place.relative_to(packages)}"


def _nvcc_version(nvcc: str) -> str:
    found = re.search(r"release (\d+\.\d+)", _output(nvcc, "--version"))
    return found[1] if found else ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def main() -> None:
    cuda = folder = ""
    if find_spec("torch"):
        import torch

        cuda, folder = torch.version.cuda or "", str(Path(torch.__file__).parent)
    build = decide(cuda, folder)
    for name, value in (
        ("device", build.device),
        ("why", build.why),
        ("torch_cuda", cuda),
        ("cuda_home", build.cuda_home),
        ("compiler", " ".join(build.compiler)),
        ("nccl_home", build.nccl_home),
        ("nccl_library", build.nccl_library),
        ("search", ";".join(build.search)),
    ):
        print(f"{name}={shlex.quote(value)}")


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # importing torch may raise any exception
        sys.exit(
            f"cuda_build: torch cannot be imported by {sys.executable} ({error}): "
            "run 'make setup' again."
        )
