"""The choice and the settings of Horovod's build for GPUs, and one real build with NCCL.

Each fault of this build that was observed has a test. build_horovod.sh is the real script. Small files stand
for torch, the CUDA toolkit and Horovod's source, because neither a GPU nor a long compilation is needed to
see what the script passes to Horovod's build. The last test compiles the real Horovod.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from importlib.util import find_spec
from pathlib import Path

import checkout_copy
import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docker" / "build_horovod.sh"


def module(name: str):
    """Import a module of docker/, which is not a package."""
    sys.path.insert(0, str(ROOT / "docker"))
    try:
        return __import__(name)
    finally:
        sys.path.pop(0)


cuda_build, gpu_driver = module("cuda_build"), module("gpu_driver")
NAMED = ("HOROVOD_CUDA_HOME", "CUDA_HOME", "HOROVOD_NCCL_HOME", "NCCL_HOME", cuda_build.FETCH)


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def toolkit(folder: Path, version: str) -> Path:
    """Make a CUDA toolkit whose compiler reports its folder, as nvcc does."""
    program(
        folder / "bin" / "nvcc",
        f'case $1 in --dryrun) echo "#$ TOP={folder}/bin/.." >&2;; '
        f'*) echo "Cuda compilation tools, release {version}, V{version}.48";; esac',
    )
    return folder


def nccl(folder: Path, *libraries: str) -> Path:
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "nccl.h").write_text("#define NCCL_MAJOR 2\n")
    (folder / "lib").mkdir()
    for name in libraries:
        (folder / "lib" / name).write_text("")
    return folder


# --- the real script, with a small source in place of Horovod's ----------------------------------------

# The texts of Horovod's source that build_horovod.sh edits, with their surroundings.
SOURCE = {
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.13)
set(CMAKE_CXX_STANDARD 14)
project(horovod CXX)
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit)
    if(CUDAToolkit_BIN_DIR)
        unset(CMAKE_CUDA_COMPILER CACHE)
        set(CMAKE_CUDA_COMPILER "${CUDAToolkit_BIN_DIR}/nvcc")
        check_language(CUDA)
    endif()
endif()
if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
endif()
""",
    "horovod/torch/CMakeLists.txt": """\
set(CMAKE_CXX_STANDARD 14)
execute_process(COMMAND ${PY_EXE} -c "from distutils.sysconfig import get_python_inc; print(get_python_inc())"
                OUTPUT_VARIABLE PYTHON_INCLUDE_PATH OUTPUT_STRIP_TRAILING_WHITESPACE)
""",
    "horovod/tensorflow/CMakeLists.txt": "list(APPEND TF_SOURCES "
    '"${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
    "cmake/Modules/FindPytorch.cmake": "import torch; from torch.utils.cpp_extension import CUDA_HOME; "
    "print(True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False)\n",
    "horovod/tensorflow/mpi_ops.cc": """\
#if HAVE_GPU
namespace stream_executor {
class Stream;
}
using GpuStreamHandle = struct CUstream_st*;
namespace stream_executor {
namespace gpu {
GpuStreamHandle AsGpuStreamValue(Stream* stream);
} // namespace stream_executor
} // namespace gpu
#if TENSORFLOW_VERSION >= 2011000000
#include "stream.h"
#else
#include "tensorflow/stream_executor/stream.h"
#endif // TENSORFLOW_VERSION >= 2011000000
#endif // HAVE_GPU

int main() {
  int handle;
  stream_executor::Stream stream{&handle};
  return stream_executor::gpu::AsGpuStreamValue(&stream) != reinterpret_cast<GpuStreamHandle>(&handle);
}
""",
    # The part of TensorFlow's Stream that the edit uses.
    "horovod/tensorflow/stream.h": """\
namespace stream_executor {
struct PlatformSpecificHandle { void* stream; };
class Stream {
 public:
  explicit Stream(void* handle) : handle_{handle} {}
  PlatformSpecificHandle platform_specific_handle() const { return {handle_}; }
 private:
  void* handle_;
};
}  // namespace stream_executor
""",
    # It saves its environment and source, and stops before it builds anything.
    "setup.py": """\
import json, os, pathlib, setuptools, shutil, sys
here = pathlib.Path.cwd()
seen = {name: value for name, value in os.environ.items()}
links = os.environ.get("HOROVOD_NCCL_LIB")
if links:
    seen["links"] = {one.name: os.path.realpath(one) for one in pathlib.Path(links).iterdir()}
kept = pathlib.Path(os.environ["KEPT"])
(kept / "seen.json").write_text(json.dumps(seen))
shutil.copytree(here, kept / "source", dirs_exist_ok=True)
if "bdist_wheel" in sys.argv:
    sys.exit("this source builds nothing")
setuptools.setup(name="horovod", version="0.28.1", packages=[])
""",
}


class Machine:
    """A folder with an environment, programs and a source, and the settings that a build there received."""

    def __init__(self, folder: Path, torch_cuda: str):
        self.folder, self.kept = folder, folder / "kept"
        self.kept.mkdir()
        self.docker = checkout_copy.copy(folder / "course", "docker") / "docker"
        venv.create(folder / "env", with_pip=False)
        (self.site,) = (folder / "env").glob("lib/python*/site-packages")
        ours = Path(find_spec("setuptools").origin).parents[1]
        for pattern in ("pip", "setuptools*", "_distutils_hack", "distutils-precedence.pth"):
            for place in ours.glob(pattern):
                (self.site / place.name).symlink_to(place)
        self.package("torch", f"class version:\n    cuda = {torch_cuda!r}\n")
        source = folder / "horovod-0.28.1"
        for name, text in SOURCE.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        with tarfile.open(folder / "horovod-0.28.1.tar.gz", "w:gz") as archive:
            archive.add(source, source.name)
        sha = subprocess.run(
            ["sha256sum", folder / "horovod-0.28.1.tar.gz"],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout.split()[0]  # fmt: skip
        script = self.docker / "build_horovod.sh"
        script.write_text(re.sub("(?m)^SHA256=.*", f"SHA256={sha}", script.read_text()))

    def package(self, name: str, text: str) -> None:
        (self.site / name).mkdir(parents=True)
        (self.site / name / "__init__.py").write_text(text)

    def pypi_nccl(self) -> Path:
        """Add PyPI's NCCL and CUDA runtime, which come with torch for CUDA 13."""
        (self.site / "nvidia" / "cu13" / "lib").mkdir(parents=True)
        return nccl(self.site / "nvidia" / "nccl", "libnccl.so.2")

    def build(self, source=True, **variables) -> subprocess.CompletedProcess:
        """Run build_horovod.sh; without `source` it ends where it would fetch Horovod's source."""
        environment = {k: v for k, v in os.environ.items() if k not in NAMED}
        environment |= {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.folder) if source else os.devnull,
            "KEPT": str(self.kept),
        }
        return subprocess.run(
            [self.docker / "build_horovod.sh", self.folder / "env" / "bin" / "python"],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def seen(self) -> dict:
        return json.loads((self.kept / "seen.json").read_text())

    def edited(self, name: str) -> str:
        return (self.kept / "source" / name).read_text()


@pytest.fixture(scope="module")
def gpu_build(tmp_path_factory) -> Machine:
    """Build for PyPI's torch, on a machine whose nvcc is a wrapper."""
    machine = Machine(tmp_path_factory.mktemp("gpu"), "13.0")
    machine.pypi_nccl()
    real = toolkit(machine.folder / "opt" / "cuda-13.0", "13.0")
    program(machine.folder / "bin" / "nvcc", f'exec {real}/bin/nvcc "$@"')
    machine.answer = machine.build()
    assert "the compilation failed" in machine.answer.stderr, machine.answer
    assert "this source builds nothing" in machine.answer.stderr
    return machine


@pytest.fixture(scope="module")
def cpu_build(tmp_path_factory) -> Machine:
    """Build for torch with CUDA, on a machine whose toolkit has another version."""
    machine = Machine(tmp_path_factory.mktemp("cpu"), "12.6")
    machine.pypi_nccl()
    home = toolkit(machine.folder / "opt" / "cuda-13.0", "13.0")
    machine.answer = machine.build(CUDA_HOME=str(home), HOROVOD_GPU_OPERATIONS="NCCL")
    assert "this source builds nothing" in machine.answer.stderr, machine.answer
    return machine


def test_nccl_of_the_environment_is_found(gpu_build):
    """Fault 1: only /usr, /usr/local and /usr/local/cuda were searched."""
    assert "GPU build with NCCL" in gpu_build.answer.stdout
    assert gpu_build.seen()["HOROVOD_NCCL_HOME"] == str(gpu_build.site / "nvidia" / "nccl")
    assert gpu_build.seen()["HOROVOD_GPU_OPERATIONS"] == "NCCL"


def test_a_cpu_build_ignores_a_cuda_build_of_torch(cpu_build):
    """Fault 2: CMake queried torch, and made half a GPU build or stopped because a toolkit was missing."""
    assert "CPU build" in cpu_build.answer.stdout
    assert "CUDA 12 toolkit, and PyPI has no nvcc for it" in cpu_build.answer.stdout
    cpu_build.package("torch/utils", "")
    (cpu_build.site / "torch" / "utils" / "cpp_extension.py").write_text("CUDA_HOME = '/cuda'\n")
    name = "cmake/Modules/FindPytorch.cmake"
    answers = [
        subprocess.run(
            [cpu_build.folder / "env" / "bin" / "python", "-c", question],
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for question in (SOURCE[name], cpu_build.edited(name))
    ]
    assert answers == ["True\n", "False\n"]
    assert not [name for name in cpu_build.seen() if name.startswith("HOROVOD_GPU")]


def test_a_cpu_build_does_not_need_a_working_nvcc(cpu_build, tmp_path):
    """Fault 2, observed later: CMake stopped at an nvcc that cannot compile, for example with a new g++."""
    broken = tmp_path / "opt" / "cuda" / "bin"
    program(broken / "nvcc", "exit 1")
    for name, text in (
        ("include/cuda_runtime.h", ""),
        ("include/cuda.h", "#define CUDA_VERSION 11080\n"),
        ("lib64/libcudart.so", ""),
    ):
        (broken.parent / name).parent.mkdir(exist_ok=True)
        (broken.parent / name).write_text(text)
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "CMakeLists.txt").write_text(SOURCE["CMakeLists.txt"])
    path = f"{broken}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k not in NAMED}
    environment |= {"PATH": path, "CUDAToolkit_ROOT": str(broken.parent)}  # and no other toolkit
    cmake = Path(sys.executable).parent / "cmake"
    codes = [
        subprocess.run(
            [cmake, "-S", source, "-B", tmp_path / f"of-{source.name}"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        ).returncode
        for source in (tmp_path / "before", cpu_build.kept / "source")
    ]
    assert codes == [1, 0]


def test_the_headers_of_python_are_found_without_distutils(gpu_build):
    """Python 3.12 has no distutils; without the headers the build fails after minutes ("Python.h")."""
    text = gpu_build.edited("horovod/torch/CMakeLists.txt")
    (question,) = re.findall('PY_EXE} -c "(.*)"', text)
    no_distutils = f"import sys; sys.modules['distutils'] = None; {question}"
    done = subprocess.run(
        [sys.executable, "-c", no_distutils], capture_output=True, text=True, timeout=60
    )
    assert Path(done.stdout.strip(), "Python.h").is_file(), done.stderr


def test_a_gpu_build_keeps_the_query_for_nvcc(gpu_build):
    name = "cmake/Modules/FindPytorch.cmake"
    assert gpu_build.edited(name) == SOURCE[name]


def test_the_toolkit_is_found_behind_a_wrapper_of_nvcc(gpu_build):
    """Fault 3: CMake and torch took the folder above the wrapper for the toolkit."""
    real = str(gpu_build.folder / "opt" / "cuda-13.0")
    seen = gpu_build.seen()
    assert (seen["CUDA_HOME"], seen["HOROVOD_CUDA_HOME"]) == (real, real)


def test_the_linker_finds_an_nccl_that_has_only_libnccl_so_2(gpu_build):
    """Fault 4: PyPI's NCCL has libnccl.so.2 and no libnccl.so."""
    library = gpu_build.site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    assert gpu_build.seen()["links"] == {"libnccl.so": str(library)}
    assert gpu_build.seen()["HOROVOD_NCCL_LINK"] == "shared"


def test_the_build_lets_cmake_4_configure_gloo(gpu_build, cpu_build):
    """Fault 5: Gloo requires CMake 2.8.12, and CMake 4 refuses that without this variable."""
    for machine in (gpu_build, cpu_build):
        assert machine.seen()["CMAKE_POLICY_VERSION_MINIMUM"] == "3.5"


@pytest.mark.thorough  # fetches CMake 4
def test_cmake_4_accepts_the_variable(tmp_path):
    """The real CMake 4 accepts the variable."""
    (setting,) = re.findall(r"export (CMAKE_POLICY_VERSION_MINIMUM=\S+)", BUILD.read_text())
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "four"]
    subprocess.run([*pip, "cmake>=4"], check=True, timeout=300)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 2.8.12)\nproject(gloo NONE)\n"
    )
    answers = [
        subprocess.run(
            [tmp_path / "four" / "bin" / "cmake", "-S", tmp_path, "-B", tmp_path / f"b{len(more)}"],
            env={**os.environ, "PYTHONPATH": str(tmp_path / "four"), **more},
            capture_output=True,
            text=True,
            timeout=60,
        )
        for more in ({}, dict([setting.split("=")]))
    ]
    assert "Compatibility with CMake < 3.5 has been removed" in answers[0].stderr
    assert answers[1].returncode == 0, answers[1].stderr


def test_libraries_are_found_without_ld_library_path(gpu_build, cpu_build):
    """Fault 6: RUNPATH named only MPI and torch, so NCCL was found only after `import torch`, if at all."""
    (folders,) = re.findall('CMAKE_INSTALL_RPATH "(.*)"', gpu_build.edited("CMakeLists.txt"))
    of_torch = "$ORIGIN/../../torch/lib"
    packages = ["nvidia/nccl/lib", "nvidia/cu13/lib"]
    (of_mpi, *named) = [one for one in folders.split(";") if not Path(one).is_absolute()]
    assert of_mpi == "$ORIGIN/../../../.."
    assert named == [of_torch, *(f"$ORIGIN/../../{name}" for name in packages)]
    assert of_torch in cpu_build.edited("CMakeLists.txt")
    assert "nccl" not in cpu_build.edited("CMakeLists.txt")


def test_defines_the_function_that_tensorflow_lacks(gpu_build, tmp_path):
    """Fault 7: undefined symbol stream_executor::gpu::AsGpuStreamValue at `import horovod.tensorflow`."""
    folder = gpu_build.kept / "source" / "horovod" / "tensorflow"
    flags = ["-std=c++17", "-DHAVE_GPU=1", "-DTENSORFLOW_VERSION=2021000000"]
    subprocess.run(
        ["g++", *flags, folder / "mpi_ops.cc", "-o", tmp_path / "program"],
        check=True,
        timeout=120,
    )
    assert subprocess.run([tmp_path / "program"], timeout=60).returncode == 0


def test_the_key_of_the_wheel_covers_all_inputs_of_the_build(tmp_path):
    machine = Machine(tmp_path, "13.0")
    header = machine.pypi_nccl() / "include" / "nccl.h"
    keys = []

    def build(**variables) -> None:
        machine.build(source=False, **variables)
        new = {path.name for path in (tmp_path / "cache").rglob("*.log")} - set(keys)
        keys.extend(sorted(new) or ["no new key"])

    home = toolkit(tmp_path / "opt" / "cuda", "13.0")
    build(CUDA_HOME=str(home))
    build(CUDA_HOME=str(home))  # nothing has changed
    assert keys[1:] == ["no new key"], keys
    toolkit(home, "13.1")
    build(CUDA_HOME=str(home))
    header.write_text("#define NCCL_MAJOR 3\n")
    build(CUDA_HOME=str(home))
    elsewhere = nccl(tmp_path / "module", "libnccl.so")
    shutil.copy(header, elsewhere / "include")
    # The same NCCL in another folder changes RUNPATH.
    build(CUDA_HOME=str(home), NCCL_HOME=str(elsewhere))
    toolkit(home, "12.6")
    build(CUDA_HOME=str(home), NCCL_HOME=str(elsewhere))  # a CPU build
    assert "no new key" not in keys[2:] and len(set(keys)) == 6, keys


def test_reports_a_torch_that_cannot_be_imported_in_one_sentence(tmp_path):
    machine = Machine(tmp_path, "13.0")
    (machine.site / "torch" / "__init__.py").write_text("raise OSError('libc10.so: no such file')")
    answer = machine.build()
    assert answer.returncode == 1 and len(answer.stderr.splitlines()) == 1, answer
    assert "cannot be imported" in answer.stderr and "libc10.so: no such file" in answer.stderr


# --- the decision, case by case ----------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Simulate a machine without compiler, NCCL and driver. PATH is tmp_path/bin."""
    for name in NAMED:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(cuda_build, "packaged", lambda name: "")
    monkeypatch.setattr(gpu_driver, "DRIVER_PROGRAMS", "")
    monkeypatch.setattr(cuda_build, "SYSTEM_NCCL", ())
    monkeypatch.setattr(cuda_build, "SYSTEM_NVCC", str(tmp_path / "none"))
    return tmp_path


def in_site_packages(monkeypatch, folder: Path) -> None:
    """Add PyPI's NCCL and CUDA runtime, as they come with torch."""
    nccl(folder / "nvidia" / "nccl", "libnccl.so.2")
    (folder / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    places = {"nvidia.nccl": "nvidia/nccl", "nvidia.cu13": "nvidia/cu13"}
    monkeypatch.setattr(
        cuda_build, "packaged", lambda name: str(folder / places[name]) if name in places else ""
    )
    monkeypatch.setattr(cuda_build.sysconfig, "get_path", lambda name: str(folder))


@pytest.mark.parametrize("have", ["nothing", "compiler", "nccl"])
def test_a_missing_part_gives_a_cpu_build(have, machine, monkeypatch):
    """Without NCCL even a toolkit gives a CPU build, as scripts can exchange through host memory."""
    if have == "compiler":
        monkeypatch.setenv("CUDA_HOME", str(toolkit(machine / "cuda", "13.0")))
    if have == "nccl":
        monkeypatch.setenv("NCCL_HOME", str(nccl(machine / "nccl", "libnccl.so")))
    build = cuda_build.decide("13.0", str(machine / "torch"))
    assert (build.device, build.cuda_home) == ("cpu", "")
    assert ("nvcc" if have == "nccl" else "NCCL") in build.why


def test_folders_named_by_the_user_come_first(machine, monkeypatch):
    toolkit(machine / "cuda", "13.0")
    monkeypatch.setenv("CUDA_HOME", str(machine / "cuda"))
    in_site_packages(monkeypatch, machine / "site-packages")
    for variable in ("NCCL_HOME", "HOROVOD_NCCL_HOME"):
        own = nccl(machine / variable, "libnccl.so.2", "libnccl.so")
        monkeypatch.setenv(variable, str(own))
        build = cuda_build.decide("13.0", "")
        assert (build.nccl_home, build.nccl_library) == (str(own), f"{own}/lib/libnccl.so")


@pytest.mark.parametrize("kind", ["wrapper", "link", "copy"])
def test_nvcc_reports_the_folder_of_its_toolkit(kind, machine, monkeypatch):
    real = toolkit(machine / "usr" / "local" / "cuda-13.0", "13.0")
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")
    if kind == "wrapper":
        program(machine / "bin" / "nvcc", f'exec {real}/bin/nvcc "$@"')
    elif kind == "link":
        (machine / "bin" / "nvcc").symlink_to(real / "bin" / "nvcc")
    else:  # an nvcc that reports no folder that contains it, such as conda's
        real = machine
        program(machine / "bin" / "nvcc", 'echo "#$ TOP=/nowhere" >&2; echo release 13.0')
    assert cuda_build.toolkit() == (str(real), "13.0")


def test_runpath_is_absolute_for_libraries_outside_the_environment(machine, monkeypatch):
    """NCCL may come from a module, torch and MPI from a base. A batch job has no `module load`."""
    monkeypatch.setenv("CUDA_HOME", str(toolkit(machine / "cuda", "13.0")))
    site = machine / "env" / "lib" / "python3.12" / "site-packages"
    in_site_packages(monkeypatch, site)
    monkeypatch.setenv("NCCL_HOME", str(nccl(machine / "module", "libnccl.so")))
    (machine / "mpi" / "lib").mkdir(parents=True)
    program(machine / "bin" / "mpicxx", f"echo {machine}/mpi/lib")
    search = cuda_build.decide("13.0", str(machine / "base" / "torch")).search
    assert search[:3] == (
        f"{machine}/mpi/lib",
        f"{machine}/base/torch/lib",
        f"{machine}/module/lib",
    )
    program(machine / "bin" / "mpicxx", f"echo {machine}/env/lib")  # MPI of this environment
    assert cuda_build.decide("13.0", "").search[0] == f"{machine}/module/lib"


def test_a_driver_without_nvcc_is_enough_for_cuda_13(machine, monkeypatch):
    """Without nvcc, PyPI's packages are fetched for CUDA 13. PyPI has no nvcc for CUDA 12."""
    in_site_packages(monkeypatch, machine / "site-packages")
    assert cuda_build.decide("13.0", "").device == "cpu"  # no driver that could run a GPU build
    program(machine / "bin" / "nvidia-smi", "echo")
    build = cuda_build.decide("13.0", "")
    assert build.device == "nccl" and "nvidia-cuda-nvcc==13.0.*" in build.compiler
    twelve = cuda_build.decide("12.6", "")
    assert twelve.device == "cpu" and "CUDA 12 toolkit" in twelve.why
    # A toolkit whose version differs from torch's
    monkeypatch.setenv("CUDA_HOME", str(toolkit(machine / "cuda", "12.6")))
    assert cuda_build.decide("13.0", "").compiler and cuda_build.decide("12.6", "").device == "nccl"


def test_a_login_node_can_build_for_gpus(machine, monkeypatch):
    in_site_packages(monkeypatch, machine / "site-packages")
    monkeypatch.setenv(cuda_build.FETCH, "1")
    assert cuda_build.decide("13.0", "").compiler


# --- the check on GPUs, with the real mpirun and simulated frameworks ---------------------------------

TORCH = """
class version:
    cuda = None
class cuda:
    device_count = staticmethod(lambda: {count})
class tensor(list):
    def __init__(self, values, device=None):
        super().__init__(values)
        self.device = device and device + ":0"
    __mul__ = lambda self, n: tensor([one * n for one in self])
    cpu = numpy = lambda self: self
    tolist = lambda self: list(self)
ones = lambda n: tensor([1.0] * n)
"""
HOROVOD_TORCH = """
import os, pathlib, torch
Sum = "sum"
init = lambda: None
rank = lambda: int(os.environ["OMPI_COMM_WORLD_RANK"])
size = lambda: int(os.environ["OMPI_COMM_WORLD_SIZE"])
mpi_built = gloo_built = nccl_built = lambda: True
def allreduce(values, op):
    if values.device:
        kept = pathlib.Path(os.environ["KEPT"])
        (kept / f"rank{rank()}of{size()}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        if (kept / "broken").exists():
            raise RuntimeError("ncclUnhandledCudaError")
    else:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
    total = torch.tensor([one / (rank() + 1) * size() * (size() + 1) / 2 for one in values])
    total.device = values.device
    return total
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("count", "shown", "devices"),
    [(0, None, {}), (1, None, {"rank0of1": "0"})]
    + [(4, None, {"rank0of2": "0", "rank1of2": "1"})]
    + [(2, "GPU-a,GPU-b", {"rank0of2": "GPU-a", "rank1of2": "GPU-b"})],
)
def test_each_rank_of_the_gpu_check_has_its_own_gpu(count, shown, devices, tmp_path):
    machine = Machine(tmp_path, "")
    (machine.site / "torch" / "__init__.py").write_text(TORCH.format(count=count))
    # A Horovod of the image, which is kept and only checked.
    theirs = tmp_path / "theirs" / "horovod"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("")
    (theirs / "torch.py").write_text(HOROVOD_TORCH)
    (machine.site / "theirs.pth").write_text(f"{theirs.parent}\n")
    ours = str(Path(sys.executable).parent)
    variables = {"PATH": f"{os.environ['PATH']}:{ours}"}
    variables |= {"CUDA_VISIBLE_DEVICES": shown} if shown else {}
    answer = machine.build(**variables)
    assert answer.returncode == 0, answer
    assert "torch all-reduce on two ranks (MPI, Gloo, nccl)" in answer.stdout
    ran = {path.name: path.read_text() for path in machine.kept.glob("rank*")}
    assert ran == devices
    assert ("through NCCL" in answer.stdout) == bool(devices)
    if count == 1:
        (machine.kept / "broken").touch()
        answer = machine.build(**variables)
        assert answer.returncode == 1
        assert "1 rank cannot all-reduce on GPUs" in answer.stderr.splitlines()[0]
        assert "ncclUnhandledCudaError" in answer.stderr


# --- the real build ----------------------------------------------------------------------------------

TWO_RANKS = """
import horovod.{0} as hvd, {0} as framework
hvd.init()
total = float(hvd.allreduce(framework.ones(1) * (hvd.rank() + 1), op=hvd.Sum)[0])
print("sum", total, "nccl", bool(hvd.nccl_built()), flush=True)
"""


@pytest.mark.thorough
@pytest.mark.timeout(5400)
def test_a_real_build_with_nccl(tmp_path):
    """Compile with NCCL for the pinned environment: both frameworks all-reduce on two CPU ranks."""
    python = os.environ.get("HVDLAB_CUDA_PYTHON")
    if not python:
        pytest.skip(
            "HVDLAB_CUDA_PYTHON names no Python of an environment with a CUDA build of torch"
        )
    packages = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
    )
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    environment |= {cuda_build.FETCH: "1"}
    built = subprocess.run(
        [BUILD, python], env=environment, capture_output=True, text=True, timeout=5000
    )
    print(built.stdout)
    assert built.returncode == 0, built.stderr
    assert "GPU build with NCCL" in built.stdout
    assert "two ranks (MPI, Gloo, nccl)" in built.stdout
    for framework, library in ("torch", "mpi_lib_v2"), ("tensorflow", "mpi_lib"):
        (path,) = (packages / "horovod" / framework).glob(f"{library}.*.so")
        dynamic = subprocess.run(
            ["readelf", "-d", path], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        (folders,) = re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", dynamic)
        assert all(folder.startswith("$ORIGIN/") for folder in folders.split(":")), folders
        found = subprocess.run(
            ["ldd", path], env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout
        assert f"libnccl.so.2 => {packages}/horovod/{framework}/../../nvidia/nccl/lib" in found
        assert "not found" not in found, found
        script = tmp_path / f"{framework}_ranks.py"
        script.write_text(TWO_RANKS.format(framework))
        mpirun = Path(python).with_name("mpirun")
        ranks = subprocess.run(
            [mpirun, "--oversubscribe", "--bind-to", "none", "-np", "2", python, script],
            env={**environment, "CUDA_VISIBLE_DEVICES": "-1", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
            | {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ranks.stdout.count("sum 3.0 nccl True") == 2, ranks.stderr
