"""What the doctor says of GPUs, from recorded answers of nvidia-smi, torch and TensorFlow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from doctor_cases import GPU, MISSING, with_gpus

from hvdlab.doctor import import_probe
from hvdlab.doctor.answers import ProgramOutput
from hvdlab.doctor.checks import gpus, machine

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def plain_shell(tmp_path, monkeypatch):
    """No variable that hides GPUs, and no device file of this machine; return the folder that plays /."""
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "KERAS_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpus, "Path", lambda *parts: tmp_path / "/".join(parts).lstrip("/"))
    return tmp_path


# --- the row "GPUs" -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "torch, state, seen, ranks",
    [
        ({}, "ok", "Horovod is built with NCCL", 2),
        ({"horovod": {"nccl": False}}, "warning", "may read it too early or wait for ever", 2),
        ({"cuda": "13.0", "horovod": {"nccl": False}}, "warning", "fetches NVIDIA's compiler", 2),
        (
            {"cuda": "12.6", "horovod": {"nccl": False}},
            "warning",
            "a CUDA 12 toolkit: put its nvcc",
            2,
        ),
        ({"gpus": 0, "cuda": ""}, "warning", "the CPU only", 0),
    ],
)
def test_gpus_are_of_use_when_torch_and_horovod_can(torch, state, seen, ranks):
    said = with_gpus(2, torch=torch)
    answer = gpus.gpus(said)
    assert answer.state == state and seen in answer.seen and answer.seen.startswith("2: NVIDIA")
    assert gpus.usable_gpus(said) == ranks
    assert "uses them with NCCL" not in answer.seen  # what only ranks can prove
    if "wait for ever" in seen:
        assert answer.fix == f"bash {ROOT}/docker/build_horovod.sh {sys.executable}"


@pytest.mark.parametrize("count, state", [(1, "ok"), (2, "warning")])
def test_gpus_that_a_variable_hides_are_told(count, state, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # torch sees one
    answer = gpus.gpus(
        with_gpus(torch={"gpus": 1}) | {"nvidia-smi": ProgramOutput(0, count * GPU, "")}
    )
    assert answer.state == state and ("='0' leaves 1" in answer.seen) == (state == "warning")
    assert answer.fix == ("unset CUDA_VISIBLE_DEVICES" if state == "warning" else "")


@pytest.mark.parametrize(
    "built, sees, seen, fix",
    [
        ("12.4", 1, "with NCCL", ""),  # the other GPU is somebody else's
        ("12.4", 0, "leaves 0, all that this job has", "salloc --ntasks=2 --gpus=2"),
        ("", 0, "built for the CPU only", " setup TORCH_INDEX="),
    ],
)
def test_what_a_job_was_not_given_is_not_to_be_taken(built, sees, seen, fix, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    answer = gpus.gpus(with_gpus(2, torch={"gpus": sees, "cuda": built}))
    assert seen in answer.seen and fix in answer.fix and "unset" not in answer.fix
    assert (answer.state == "ok") == (sees == 1)


OLD = GPU.replace("550.54", "470.256.02")


@pytest.mark.parametrize("driver, index", [("550.54", gpus.OLDER_CUDA), ("580.65.06", "")])
def test_a_torch_for_processors_is_replaced_by_one_that_the_driver_can_run(driver, index):
    said = with_gpus(line=GPU.replace("550.54", driver), torch={"gpus": 0, "cuda": ""})
    assert gpus.gpus(said).fix == f"make -C {ROOT} setup TORCH_INDEX={index}"


@pytest.mark.parametrize(
    "cuda, line, seen",
    [
        ("13.0", GPU, "CUDA 13.0, which needs driver 580 or newer"),
        ("12.6", OLD, "CUDA 12.6, which needs driver 525 or newer"),
        ("12.6", GPU, "torch is built for CUDA 12.6 and sees none"),  # the driver is new enough
    ],
)
def test_an_old_driver_is_told_by_the_cuda_of_torch(cuda, line, seen):
    answer = gpus.gpus(with_gpus(line=line, torch={"gpus": 0, "cuda": cuda}))
    assert answer.state == "warning" and seen in answer.seen
    assert ("whl/cu126" in answer.fix) == (cuda == "13.0")  # no torch is for driver 470
    blind = with_gpus(line=GPU, torch={"gpus": 0, "cuda": "12.6"})
    words = "UserWarning: CUDA initialization: Unexpected error"
    blind["torch"] = blind["torch"]._replace(err=f"{words}\n  return x\n")
    assert f"({words})" in gpus.gpus(blind).seen
    # With NVIDIA's package for newer CUDA on older drivers torch sees the GPU.
    assert gpus.gpus(with_gpus(line=line, torch={"cuda": cuda})).state == "ok"


CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]  # of torch 2.13 on PyPI


@pytest.mark.parametrize(
    "capability, architectures, runs",
    [
        ((7, 0), CU130, False),  # V100
        ((6, 0), CU130, False),  # P100
        ((7, 5), CU130, True),
        ((8, 9), CU130, True),  # of the generation of sm_86
        ((9, 0), ["sm_90a"], True),
        ((8, 0), ["sm_86"], False),  # an earlier GPU of the generation
        ((12, 1), ["sm_90", "compute_90"], True),  # PTX is translated on the machine
        ((8, 0), ["compute_90"], False),
        ((12, 0), ["sm_80", "sm_90"], False),  # of a later generation
    ],
)
def test_a_gpu_needs_code_for_its_generation(capability, architectures, runs):
    torch = {"capabilities": [[9, 0], capability], "architectures": [*architectures, "sm_90"]}
    answer = gpus.gpus(with_gpus(2, torch=torch))
    number = ".".join(map(str, capability))
    assert any(gpus.runs_on(capability, name) for name in architectures) == runs
    if not runs:
        assert answer.state == "warning" and f"compute capability {number}" in answer.seen
        assert ("TORCH_INDEX=https" in answer.fix) == (
            capability < (9, 0)
        )  # CUDA 12, or the newest
    else:
        assert answer.state == "ok"


@pytest.mark.parametrize(
    "mode, count, state",
    [("Default", 1, "ok"), ("Exclusive_Process", 1, "warning"), ("Exclusive_Process", 2, "ok"),
     ("Prohibited", 2, "warning")],
)  # fmt: skip
def test_a_compute_mode_in_which_ranks_cannot_share_the_gpu_is_told(mode, count, state):
    answer = gpus.gpus(with_gpus(count, GPU.replace("Default", mode), torch={}))
    assert answer.state == state and (f"compute mode {mode}" in answer.seen) == (state != "ok")


def test_mig_slices_exchange_through_host_memory():
    said = with_gpus(torch={})
    slices = "".join(f"  MIG 3g.40gb Device {i}: (UUID: MIG-{i})\n" for i in range(2))
    listed = said["nvidia-smi --list-gpus"]
    said["nvidia-smi --list-gpus"] = listed._replace(out=listed.out + slices)
    answer = gpus.gpus(said)
    assert answer.state == "ok" and "2 MIG slices" in answer.seen
    assert answer.seen.endswith("between slices through host memory")


def test_device_files_of_a_group_are_told(plain_shell, monkeypatch):
    (plain_shell / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-modeset"):
        (plain_shell / "dev" / name).touch()
    failing = ProgramOutput(4, "Failed to initialize NVML: Insufficient Permissions\n", "")
    for said in (with_gpus(torch={}), with_gpus(torch={}) | {"nvidia-smi": failing}):
        monkeypatch.setattr(os, "access", lambda path, mode: path.endswith("modeset"))
        monkeypatch.setattr(gpus, "_group", lambda file: "video")
        answer = gpus.gpus(said)
        assert answer.state == "warning" and "nvidia0, which is for the group video" in answer.seen
        assert "usermod -aG video" in answer.fix
        monkeypatch.setattr(os, "access", lambda path, mode: not path.endswith("modeset"))
        assert "group video" not in gpus.gpus(said).seen


def test_a_gpu_under_wsl_is_told_whose_nvidia_smi_is_not_on_path(plain_shell):
    said = with_gpus(torch={})
    (plain_shell / "dev").mkdir()
    (plain_shell / "dev/dxg").touch()
    assert ", through WSL 2; " in gpus.gpus(said).seen
    (plain_shell / "usr/lib/wsl/lib").mkdir(parents=True)
    (plain_shell / "usr/lib/wsl/lib/nvidia-smi").touch()
    answer = gpus.gpus(
        said | {"nvidia-smi": ProgramOutput(None, "", "", "nvidia-smi: no such file")}
    )
    assert answer.state == "warning" and "WSL 2" in answer.seen and "wsl/lib" in answer.fix


def test_a_missing_link_to_libcuda_is_told_and_made(tmp_path):
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    answer = gpus.gpus(with_gpus(torch={"lacks_link_to": library}))
    assert answer.state == "warning" and f"only {library} is here" in answer.seen
    assert answer.fix == f"ln -s {library} {sys.prefix}/lib/libcuda.so"
    # A CPU build of Horovod does not open it.
    without = with_gpus(torch={"lacks_link_to": library, "horovod": {"nccl": False}})
    assert "libcuda" not in gpus.gpus(without).seen


LINK = """\
import sys
from hvdlab.doctor import import_probe as probe
sys.prefix = sys.argv[1]
print(probe.libcuda_without_link())
"""


@pytest.mark.parametrize("names, lacks", [
    ([], False), (["libcuda.so.1"], True), (["libcuda.so.1", "libcuda.so"], False),
    (["libcuda.so.1", "lib/libcuda.so"], False),
])  # fmt: skip
def test_the_probe_finds_the_drivers_library_by_both_names(names, lacks, tmp_path):
    """Real libraries with these names, in a folder where the loader looks."""
    (tmp_path / "source.c").write_text("int cuInit(unsigned flags) { return 0; }\n")
    library = tmp_path / "built.so"
    compiler = ["g++", "-shared", "-fPIC", "-o", library, tmp_path / "source.c"]
    subprocess.run(compiler, check=True, timeout=60)
    (tmp_path / "lib").mkdir()
    for name in names:
        (tmp_path / name).write_bytes(library.read_bytes())
    answer = subprocess.run(
        [sys.executable, "-c", LINK, tmp_path],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "labs")},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    if not names and answer.stdout.strip():
        pytest.skip("this machine has a driver")
    assert answer.stdout.strip() == (f"{tmp_path}/libcuda.so.1" if lacks else "")


# --- the row "GPUs, TF" -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tensorflow, state, seen",
    [
        ({"gpus": 2}, "ok", "TensorFlow sees 2"),
        ({"gpus": 0, "cuda": "12.5.1"}, "warning", "for CUDA 12.5.1, whose libraries"),
        ({"gpus": 0, "cuda": ""}, "warning", "for the processor only"),
        (None, "ok", "cannot be imported"),
    ],
)
def test_gpus_that_only_torch_sees_are_told(tensorflow, state, seen, monkeypatch):
    both = {"tensorflow": tensorflow} if tensorflow else {}
    said = with_gpus(2, torch={}, **both)
    answer = gpus.tensorflow(said)
    assert answer.state == state and seen in answer.seen
    if state == "warning":
        for choice in ("Keras on torch", "both for CUDA 12", "NVIDIA's TensorFlow image"):
            assert choice in answer.seen
        assert answer.fix == "export KERAS_BACKEND=torch"
        monkeypatch.setenv("KERAS_BACKEND", "torch")
        assert gpus.tensorflow(said).state == "ok"


# --- how many ranks, and what they need ---------------------------------------------------------------


@pytest.mark.parametrize(
    "there, tasks, cores, ranks",
    [(4, 6, 16, 4), (1, 0, 16, 2), (1, 1, 16, 1), (0, 6, 16, 6), (0, 0, 1, 2), (0, 0, 5, 5), (0, 0, 64, 8)],
)  # fmt: skip
def test_so_many_ranks_suit_a_machine(there, tasks, cores, ranks, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", str(tasks))
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    for nccl in (True, False):
        said = with_gpus(there, torch={"horovod": {"nccl": nccl}})
        assert machine.ranks(said) == ranks


@pytest.mark.parametrize(
    "free, seen", [(1 << 30, "GiB free"), ((1 << 30) - 1, "NCCL and Open MPI")]
)
def test_ranks_on_gpus_want_a_gibibyte_of_shared_memory(free, seen, monkeypatch):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    monkeypatch.setattr(machine, "writable", lambda place: True)
    answer = machine.shared_memory(with_gpus(2, torch={}))
    assert seen in answer.seen and (answer.state == "ok") == (free == 1 << 30)
    assert answer.state == "ok" or "2g" in answer.fix.lower()
    assert machine.shared_memory({**with_gpus(0), "torch": MISSING}).state == "ok"


# --- what the probe tells -----------------------------------------------------------------------------


def test_a_probe_counts_no_gpu_that_torch_cannot_use(monkeypatch, capsys):
    """With an old driver `torch.cuda.device_count()` counts what `is_available()` denies."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    import_probe.pytorch()
    assert json.loads(capsys.readouterr().out.splitlines()[0])["gpus"] == 0
