"""How Horovod's build for GPUs is decided, with fake toolchains, and one real build with NCCL.

Each fault of the build for GPUs that was seen has a test here. Only the last test compiles.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docker" / "build_horovod.sh"


def module(name: str):
    """A module of docker/, which is no package."""
    sys.path.insert(0, str(ROOT / "docker"))
    try:
        return __import__(name)
    finally:
        sys.path.pop(0)


cuda_build, gpu_driver = module("cuda_build"), module("gpu_driver")


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with nothing: neither compiler nor NCCL nor driver. PATH is tmp_path/bin and the system's."""
    for name in (
        "HOROVOD_CUDA_HOME",
        "CUDA_HOME",
        "HOROVOD_NCCL_HOME",
        "NCCL_HOME",
        cuda_build.FETCH,
    ):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(cuda_build, "packaged", lambda name: "")
    monkeypatch.setattr(cuda_build, "SYSTEM_NCCL", ())
    monkeypatch.setattr(cuda_build, "SYSTEM_NVCC", str(tmp_path / "none"))
    return tmp_path


def toolkit(folder: Path, version: str) -> Path:
    """A CUDA toolkit whose compiler says where it is, as nvcc does."""
    nvcc = folder / "bin" / "nvcc"
    program(
        nvcc,
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


def in_site_packages(monkeypatch, folder: Path) -> None:
    """PyPI's NCCL and CUDA runtime, as torch brings them."""
    nccl(folder / "nvidia" / "nccl", "libnccl.so.2")
    (folder / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    places = {"nvidia.nccl": "nvidia/nccl", "nvidia.cu13": "nvidia/cu13"}
    monkeypatch.setattr(
        cuda_build, "packaged", lambda name: str(folder / places[name]) if name in places else ""
    )
    monkeypatch.setattr(cuda_build.sysconfig, "get_path", lambda name: str(folder))


def test_nccl_of_the_environment_is_found(machine, monkeypatch):
    """Fault 1: only /usr, /usr/local and /usr/local/cuda were searched."""
    toolkit(machine / "cuda", "13.0")
    monkeypatch.setenv("CUDA_HOME", str(machine / "cuda"))
    site = machine / "site-packages"
    in_site_packages(monkeypatch, site)
    build = cuda_build.decide("13.0", str(site / "torch"))
    assert (build.device, build.nccl_home) == ("nccl", str(site / "nvidia" / "nccl"))
    own = nccl(machine / "own", "libnccl.so")
    monkeypatch.setenv("NCCL_HOME", str(own))  # what the user names comes first
    assert cuda_build.decide("13.0", str(site / "torch")).nccl_home == str(own)


@pytest.mark.parametrize("have", ["nothing", "compiler", "nccl"])
def test_without_a_toolkit_or_nccl_it_is_a_build_for_processors(have, machine, monkeypatch):
    """Fault 2: CMake made half a GPU build of it, or failed to, as torch is built for CUDA."""
    if have == "compiler":
        monkeypatch.setenv("CUDA_HOME", str(toolkit(machine / "cuda", "13.0")))
    if have == "nccl":
        monkeypatch.setenv("NCCL_HOME", str(nccl(machine / "nccl", "libnccl.so")))
    build = cuda_build.decide("13.0", str(machine / "torch"))
    assert build.device == "cpu" and build.cuda_home == "" and build.why
    text = BUILD.read_text()
    assert (
        '[ $device = nccl ] || edit cmake/Modules/FindPytorch.cmake "(CUDA_HOME is not None)"'
        in text
    )


@pytest.mark.parametrize("kind", ["wrapper", "link"])
def test_the_toolkit_is_found_behind_a_wrapper_of_nvcc(kind, machine, monkeypatch):
    """Fault 3: CMake and torch took the folder above the wrapper for the toolkit."""
    real = toolkit(machine / "usr" / "local" / "cuda-13.0", "13.0")
    monkeypatch.setenv("PATH", f"{machine / 'bin'}:/usr/bin:/bin")
    if kind == "wrapper":
        program(machine / "bin" / "nvcc", f'exec {real}/bin/nvcc "$@"')
    else:
        (machine / "bin" / "nvcc").symlink_to(real / "bin" / "nvcc")
    assert cuda_build.toolkit() == (str(real), "13.0")


@pytest.mark.parametrize("names", [("libnccl.so.2",), ("libnccl.so.2", "libnccl.so")])
def test_a_library_without_the_name_that_a_linker_looks_for_is_linked(names, machine, monkeypatch):
    """Fault 4: PyPI's NCCL has libnccl.so.2 and no libnccl.so. The build links a folder with that name."""
    monkeypatch.setenv("NCCL_HOME", str(nccl(machine / "nccl", *names)))
    assert Path(cuda_build.nccl()[1]).name == names[-1]
    text = BUILD.read_text()
    assert 'ln -s "$nccl_library" "$work/nccl/libnccl.so"' in text
    assert "HOROVOD_NCCL_LIB=$work/nccl HOROVOD_NCCL_LINK=shared" in text


@pytest.mark.thorough  # fetches CMake 4
def test_cmake_4_configures_what_asks_for_an_older_one(tmp_path):
    """Fault 5: Horovod's Gloo asks for CMake 2.8.12, which CMake 4 refuses without a variable."""
    (setting,) = re.findall(r"export (CMAKE_POLICY_VERSION_MINIMUM=\S+)", BUILD.read_text())
    name, value = setting.split("=")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "four"]
    subprocess.run([*pip, "cmake>=4"], check=True, timeout=300)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 2.8.12)\nproject(gloo NONE)\n"
    )
    answers = []
    for more in ({}, {name: value}):
        answers.append(
            subprocess.run(
                [
                    tmp_path / "four" / "bin" / "cmake",
                    "-S",
                    tmp_path,
                    "-B",
                    tmp_path / f"b{len(more)}",
                ],
                env={**os.environ, "PYTHONPATH": str(tmp_path / "four"), **more},
                capture_output=True,
                text=True,
                timeout=60,
            )
        )
    assert "Compatibility with CMake < 3.5 has been removed" in answers[0].stderr
    assert answers[1].returncode == 0, answers[1].stderr


def test_libraries_are_searched_from_the_wheel_on_or_by_absolute_folders(machine, monkeypatch):
    """Fault 6: RUNPATH named MPI and torch only, so that NCCL was found after `import torch` at best."""
    monkeypatch.setenv("CUDA_HOME", str(toolkit(machine / "cuda", "13.0")))
    site = machine / "site-packages"
    in_site_packages(monkeypatch, site)
    assert cuda_build.decide("13.0", str(site / "torch")).search == (
        "$ORIGIN/../../torch/lib",
        "$ORIGIN/../../nvidia/nccl/lib",
        "$ORIGIN/../../nvidia/cu13/lib",
    )
    monkeypatch.setenv("NCCL_HOME", str(nccl(machine / "module", "libnccl.so")))
    elsewhere = cuda_build.decide("13.0", str(machine / "base" / "torch")).search
    assert elsewhere[:2] == (f"{machine}/base/torch/lib", f"{machine}/module/lib")


def test_tensorflows_half_defines_what_tensorflow_lacks():
    """Fault 7: undefined symbol stream_executor::gpu::AsGpuStreamValue at `import horovod.tensorflow`."""
    text = BUILD.read_text()
    assert "inline GpuStreamHandle AsGpuStreamValue(Stream* stream)" in text
    assert "stream->platform_specific_handle().stream" in text


def test_a_driver_is_enough(machine, monkeypatch):
    """Without nvcc its packages are fetched for CUDA 13. PyPI has none for CUDA 12."""
    in_site_packages(monkeypatch, machine / "site-packages")
    assert cuda_build.decide("13.0", "").device == "cpu"  # nothing that could run it
    program(machine / "bin" / "nvidia-smi", "echo")
    build = cuda_build.decide("13.0", "")
    assert build.device == "nccl" and "nvidia-cuda-nvcc==13.0.*" in build.compiler
    twelve = cuda_build.decide("12.6", "")
    assert twelve.device == "cpu" and "CUDA 12 toolkit" in twelve.why
    # A toolkit of another version than torch's
    monkeypatch.setenv("CUDA_HOME", str(toolkit(machine / "cuda", "12.6")))
    assert cuda_build.decide("13.0", "").compiler and cuda_build.decide("12.6", "").device == "nccl"


@pytest.mark.parametrize(
    ("gpus", "index", "says"),
    [
        ([], gpu_driver.CPU_INDEX, ""),
        ([(580, (9, 0))], gpu_driver.PIP_DEFAULT, "torch for CUDA 13"),
        ([(580, (7, 5)), (580, (12, 0))], gpu_driver.PIP_DEFAULT, "capability 7.5"),
        ([(580, (7, 0))], gpu_driver.CUDA12_INDEX, "CUDA 13 needs driver 580"),  # V100
        ([(575, (9, 0))], gpu_driver.CUDA12_INDEX, "driver 575"),
        ([(525, (6, 0)), (525, (8, 0))], gpu_driver.CUDA12_INDEX, "6.0"),
        ([(570, (12, 0))], gpu_driver.CPU_INDEX, "update the driver"),  # Blackwell
        ([(470, (8, 0))], gpu_driver.CPU_INDEX, "driver 525"),
        ([(580, (3, 7))], gpu_driver.CPU_INDEX, "no build of torch supports"),
    ],
)
def test_driver_and_gpu_choose_the_build_of_torch(gpus, index, says):
    choice = gpu_driver.choose(gpus)
    assert choice.index == index and says in choice.sentence


@pytest.mark.parametrize(
    ("says", "gpus"),
    [
        ("echo 580.65.06, 9.0; echo 580.65.06, 8.6", [(580, (9, 0)), (580, (8, 6))]),
        ("echo NVIDIA-SMI has failed; exit 9", OSError),
        ("echo '[N/A], [N/A]'", OSError),
    ],
)
def test_nvidia_smi_is_read(says, gpus, tmp_path, monkeypatch):
    program(tmp_path / "nvidia-smi", says)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if gpus is OSError:
        with pytest.raises(OSError, match="does not answer"):
            gpu_driver.ask()
    else:
        assert gpu_driver.ask() == gpus


TWO_RANKS = """
import horovod.{0} as hvd, {0} as framework
hvd.init()
total = float(hvd.allreduce(framework.ones(1) * (hvd.rank() + 1), op=hvd.Sum)[0])
print("sum", total, "nccl", bool(hvd.nccl_built()), flush=True)
"""


@pytest.mark.thorough
@pytest.mark.timeout(5400)
def test_a_real_build_with_nccl(tmp_path):
    """The pinned environment, compiled with NCCL: both frameworks import and all-reduce on two processors."""
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
    assert "GPU build with NCCL" in built.stdout and "nccl" in built.stdout.splitlines()[-2]
    for framework, library in ("torch", "mpi_lib_v2"), ("tensorflow", "mpi_lib"):
        (path,) = (packages / "horovod" / framework).glob(f"{library}.*.so")
        said = subprocess.run(
            ["ldd", path], env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout
        assert "libnccl.so.2 => " in said
        assert "not found" not in said, said
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
