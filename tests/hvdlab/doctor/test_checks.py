"""The doctor's checks one by one, where no set-up has to be made for them."""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from doctor_cases import said_in

from hvdlab.doctor import answers, command
from hvdlab.doctor.answers import ProgramOutput
from hvdlab.doctor.checks import (
    allreduce,
    environment,
    frameworks,
    gpus,
    launchers,
    machine,
    software,
)
from hvdlab.doctor.run_programs import ask, probe
from hvdlab.doctor.two_rank_script import PLACES
from hvdlab.system import hardware, open_mpi

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "text, named, family",
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...", "Open MPI 5.0.11", "Open MPI"),
        ("mpirun (Open MPI) 4.1.4", "Open MPI 4.1.4", "Open MPI"),
        ("HYDRA build details:\n    Version:      5.0.2\n", "MPICH 5.0.2", "MPICH"),
        ("MPICH Version:      4.3.1\nMPICH ABI:  17:0:5", "MPICH 4.3.1", "MPICH"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 20260929 (id: 1821d9b)",
            "Intel MPI 2021.19.0",
            "MPICH",
        ),
        ("slurm 22.05", "", ""),
    ],
)
def test_launchers_and_libraries_are_told_apart(text, named, family):
    assert launchers.named(text) == named and launchers.family(text) == family


def test_a_check_that_raises_is_a_failure_of_its_own():
    def check(said):
        raise KeyError("no such thing")

    row = command.finding("x", "X", check, {})
    assert row["state"] == "failure" and "this check itself failed (KeyError" in row["seen"]


@pytest.mark.parametrize(
    "line, found",
    [
        ("import horovod.tensorflow.keras as hvd", True),
        ("    from horovod.tensorflow.keras import callbacks", True),
        ("from horovod.tensorflow import keras", True),
        ("import horovod.keras as hvd", True),
        ("import horovod.tensorflow as hvd", False),
        ("import hvdlab.keras.horovod as hvd", False),
        ("# import horovod.keras as hvd", False),
    ],
)
def test_scripts_with_horovods_own_keras_are_found(line, found, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(f"import os\n{line}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    answer = frameworks.keras({})
    assert (answer.state == "warning") == found
    assert ("line 2" in answer.seen) == found
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert frameworks.keras({}).state == "ok"


def test_what_only_has_the_name_of_a_script_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / ".#train.py").symlink_to("emacs@host.4711:1")  # a lock, and a dangling link
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "memory.py").symlink_to("/proc/self/mem")  # a file of which reading fails
    os.mkfifo(tmp_path / "pipe.py")  # opening it would wait for a writer
    (tmp_path / "train.py").write_text("import horovod.keras as hvd\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    answer = frameworks.keras({})
    assert answer.state == "warning" and answer.seen.startswith("train.py, line 1, imports")


@pytest.mark.parametrize("value, state", [("1", "ok"), ("0", "warning"), ("many", "warning")])
def test_threads_that_are_no_number_or_fit(value, state, monkeypatch):
    for name in environment.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", value)
    assert environment.threads({}).state == state


def test_an_allocation_of_one_task_is_a_warning(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert environment.slurm({}).state == "warning"
    monkeypatch.setenv("SLURM_NTASKS", "4")
    answer = environment.slurm({})
    assert answer.state == "ok" and answer.seen.startswith("job 7 on 1 node, ")
    assert answer.seen.endswith(": 4 tasks")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_limit_must_be_seconds(text, capsys):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--timeout", text])
    assert f"expected a number above 0, got {text}" in capsys.readouterr().err


ON_ANOTHER_SYSTEM = """
import os, platform, signal, sys
platform.system = lambda: sys.argv[1]
for name in ("memfd_create", "sched_getaffinity"):  # only Linux has them
    delattr(os, name)
if sys.argv[1] == "Windows":
    del signal.SIGHUP
from hvdlab import cli
sys.exit(cli.main(["doctor", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(
    "system, seen, fix",
    [
        ("Darwin", "the labs run on Linux, here in the container", "docker build -f "),
        ("Windows", "the labs run on Linux, here in WSL 2", "wsl --install"),
    ],
)
def test_another_system_is_the_one_finding(system, seen, fix):
    def doctor_says(*arguments):
        answer = subprocess.run(
            [sys.executable, "-c", ON_ANOTHER_SYSTEM, system, *arguments],
            env={**os.environ, "COLUMNS": "300"}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert answer.returncode == 1 and answer.stderr == "", answer.stderr
        return answer.stdout

    document = json.loads(doctor_says("--json"))
    (check,) = document["checks"]
    assert check["id"] == "python" and check["state"] == "failure"
    assert seen in check["seen"] and check["fix"].startswith(fix)
    assert document["labs_will_run"] is False and document["launch"] is document["ranks"] is None
    said = doctor_says()
    assert seen in said and check["fix"] in said


@pytest.fixture
def image(monkeypatch, tmp_path):
    """A function that plays an image of NVIDIA, after `make setup` in it."""

    def play(framework):
        monkeypatch.setenv(f"NVIDIA_{framework}_VERSION", "25.02")
        (tmp_path / ".venv").mkdir(exist_ok=True)
        (tmp_path / ".venv" / "pins.txt").write_text("numpy==1.26.4\n")
        (tmp_path / "docker").mkdir(exist_ok=True)
        (tmp_path / "docker" / "constraints.txt").write_text("numpy==2.4.0\n")
        monkeypatch.setattr(answers, "CHECKOUT", tmp_path)
        return tmp_path / ".venv" / "pins.txt"

    return play


@pytest.mark.parametrize("framework, other", [("torch", "tensorflow"), ("tensorflow", "torch")])
def test_an_image_of_nvidia_lacks_no_second_framework(framework, other, image, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    halves = {"torch": frameworks.horovod_torch, "tensorflow": frameworks.horovod_tensorflow}
    said = said_in(framework)
    assert frameworks.frameworks(said).state == halves[other](said).state == "warning"  # elsewhere
    image({"torch": "PYTORCH", "tensorflow": "TENSORFLOW"}[framework])
    for check in (frameworks.frameworks, halves[other]):
        answer = check(said)
        assert (answer.state, answer.fix) == ("ok", "")
        assert f"this image has only {framework}" in answer.seen
    # The framework of the image itself must be there.
    broken = said_in(other)
    assert frameworks.frameworks(broken).state != "ok" != halves[framework](broken).state


def test_what_an_image_of_nvidia_ships_is_never_replaced(image, tmp_path, monkeypatch):
    pins = image("TENSORFLOW")
    assert f"-c {pins} " in answers.install("pandas")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))  # so Horovod is the image's
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    blind = said_in("torch")
    blind["torch"] = ProgramOutput(0, json.dumps({**blind["torch"].answer(), "gpus": 0}), "")
    for answer in (
        frameworks.frameworks(said_in("torch")),  # TensorFlow is broken
        frameworks.horovod(said_in("tensorflow", gloo=False)),
        frameworks.horovod_tensorflow(said_in("tensorflow", error="undefined symbol")),
        gpus.gpus(blind),
        gpus.gpus(said_in("tensorflow", nccl=False)),
    ):
        assert answer.state != "ok" and answer.fix == "", answer
    assert launchers.fitting(said_in("tensorflow")) == ""
    # A Horovod that the set-up has built there can be built again.
    monkeypatch.setattr(sys, "prefix", str(Path(frameworks.folder()).parents[3]))
    assert "build_horovod.sh" in frameworks.horovod(said_in("tensorflow", gloo=False)).fix


def test_an_older_python_can_read_the_doctor():
    """It must be able to say that the Python is too old."""
    package = ROOT / "labs/hvdlab"
    files = [package / "cli.py"]
    for folder in ("doctor", "system"):
        files += (package / folder).rglob("*.py")
    assert len(files) > 15
    for file in files:
        ast.parse(file.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("name", environment.CONTROLLERS)
def test_a_controller_that_mpirun_does_not_serve_is_told(name, monkeypatch):
    for other in environment.CONTROLLERS:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    monkeypatch.setenv(name, "mpi")
    assert environment.variables({}).state == "ok"
    monkeypatch.setenv(name, "gloo")
    answer = environment.variables({})
    assert answer.state == "warning" and answer.fix == f"unset {name}"


def test_a_framework_whose_import_is_slow_is_not_installed_again():
    late = ProgramOutput(None, "", "", "did not end within 5 s", late=True)
    there = ProgramOutput(0, '{"version": "2.21.0"}', "")
    answer = frameworks.frameworks({"torch": late, "tensorflow": there})
    assert answer.state == "warning" and "did not end within 5 s" in answer.seen
    assert answer.fix == "hvdlab doctor --timeout 300"
    missing = late._replace(why="no such module", late=False)
    assert "pip install" in frameworks.frameworks({"torch": missing, "tensorflow": there}).fix


@pytest.mark.slow
@pytest.mark.parametrize("state", ["missing", "broken"])
def test_what_fixes_the_data_does(state, tmp_path, monkeypatch):
    """The command is run, without a network; the doctor then has nothing to say of this data set."""
    folder = tmp_path / "my data"
    folder.mkdir()
    if state == "broken":
        (folder / "cifar-10-batches-bin").mkdir()
        (folder / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"half a file")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HVDLAB_DATA", str(folder))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    def looked_for():
        told = ask({"data": probe("data")}, 100)["data"].answer()
        return {"data": ProgramOutput(0, json.dumps({"cifar10": told["cifar10"]}), "")}

    answer = environment.data(looked_for())
    assert answer.state == "failure" and str(folder) in answer.seen
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["sh", "-c", answer.fix], env={**os.environ, "PATH": path}, timeout=100, check=True
    )
    assert environment.data(looked_for()).state == "ok"
    kept = folder / "cifar-10-batches-bin.broken" / "test_batch.bin"
    assert not kept.exists() if state == "missing" else kept.read_bytes() == b"half a file"
    shutil.rmtree(folder)  # 180 MB


# --- a machine that is short of something -------------------------------------------------------------


def free(size):
    return lambda place: SimpleNamespace(free=size)


@pytest.mark.parametrize(
    "check, place, name, enough, short, seen",
    [
        (
            *(machine.memory, machine, "available_memory", lambda: 8 << 30, lambda: (8 << 30) - 1),
            ", and 4 ranks may need 8.0 GiB: the system may kill a rank",
        ),
        (
            *(machine.disk, shutil, "disk_usage", free(1 << 30), free((1 << 30) - 1)),
            "records and checkpoints may not fit",
        ),
        (
            machine.cores,
            machine,
            "cpu_quota",
            lambda: 2.0,
            lambda: 1.5,
            ", and a quota of 1.5 cores, so ranks ",
        ),
        (machine.cores, os, "sched_getaffinity", lambda _: {0, 1}, lambda _: {0}, "take turns"),
    ],
)
def test_what_is_short_is_a_warning(check, place, name, enough, short, seen, monkeypatch):
    monkeypatch.setattr(machine, "ranks", lambda said: 4)
    monkeypatch.setattr(machine, "cpu_quota", lambda: 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for value, state in ((enough, "ok"), (short, "warning")):
        monkeypatch.setattr(place, name, value)
        answer = check({})
        assert answer.state == state and (seen in answer.seen) == (state == "warning")


def test_of_several_nodes_this_one_has_its_own_ranks(monkeypatch):
    monkeypatch.setattr(machine, "ranks", lambda said: 64)
    monkeypatch.setattr(machine, "available_memory", lambda: 16 << 30)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "4,8(x7)")
    assert machine.memory({}).state == "ok"
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "9,8(x6),7")
    assert ", and 9 ranks may need 18.0 GiB" in machine.memory({}).seen


@pytest.mark.parametrize("limit, free", [(3 << 30, 2), (9 << 30, 4), ("max", 4), (0, 0), (None, 4)])
def test_the_memory_of_a_container_is_what_its_group_still_allows(
    limit, free, tmp_path, monkeypatch
):
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text(f"{3 << 30}\n")  # of that are files that were read
    (group / "memory.stat").write_text(f"anon {1 << 30}\nfile {2 << 30}\ninactive_file {2 << 30}\n")
    if limit is not None:
        (group / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {4 << 20} kB\n")
    monkeypatch.setattr(hardware, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert hardware.available_memory() == free << 30


# --- a Python or an MPI that does not fit ---------------------------------------------------------------


@pytest.mark.parametrize(
    "version, prefix, state, seen",
    [
        ((3, 10), ".venv", "failure", "; the labs need 3.11 to 3.13"),
        ((3, 11), ".venv", "ok", "python"),
        ((3, 13), ".venv", "ok", "python"),
        ((3, 14), ".venv", "failure", "; the labs need 3.11 to 3.13"),
        ((3, 11), "", "warning", ", which is not the Python of "),
    ],
)
def test_a_python_of_another_version_or_place_is_told(
    version, prefix, state, seen, tmp_path, monkeypatch
):
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(software, "CHECKOUT", tmp_path)
    played = {"version_info": version, "prefix": tmp_path / prefix, "executable": "python"}
    monkeypatch.setattr(software, "sys", SimpleNamespace(**played))
    answer = software.python({})
    assert answer.state == state and seen in answer.seen


@pytest.mark.parametrize(
    "program, state, seen",
    [
        (sys.executable, "ok", "hvdlab, in "),
        ("/bin/sh", "warning", "runs another Python, /bin/sh"),
        ("/no/python", "warning", "names /no/python, which does not exist"),
    ],
)
def test_a_kernel_runs_this_python(program, state, seen, tmp_path, monkeypatch):
    (tmp_path / "kernels/hvdlab").mkdir(parents=True)
    (tmp_path / "kernels/hvdlab/kernel.json").write_text(json.dumps({"argv": [program]}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    answer = software.kernel({})
    assert answer.state == state and seen in answer.seen


def with_mpi(monkeypatch):
    """What programs say where there is an mpirun, and a Horovod of Open MPI 5 for torch."""
    monkeypatch.setattr(open_mpi, "mpirun", lambda: sys.executable)  # any program
    return said_in("torch", library="Open MPI v5.0.11, package: ...", file="/lib/libmpi.so")


@pytest.mark.parametrize(
    "mpirun, typed, state, seen",
    [
        ("mpirun (Open MPI) 5.0.3", sys.executable, "ok", "Open MPI 5.0.3, "),
        (
            *("mpirun (Open MPI) 4.1.7", sys.executable, "warning"),
            ", of another major version than Horovod's Open MPI 5.0.11",
        ),
        ("mpirun (Open MPI) 5.0.3", None, "warning", "the environment is not activated"),
        ("HYDRA 5.0.2", sys.executable, "failure", "rank would train separately"),
    ],
)
def test_the_mpirun_is_of_horovods_generation_and_on_the_path(
    mpirun, typed, state, seen, monkeypatch
):
    said = with_mpi(monkeypatch) | {"mpirun": ProgramOutput(0, mpirun, "")}
    monkeypatch.setattr(launchers, "typed", lambda: typed)
    answer = launchers.mpi(said)
    assert answer.state == state and seen in answer.seen


RIGHT = [3.0 * place for place in PLACES]
OWN = [1.0 * place for place in PLACES]  # of rank 0, not summed


@pytest.mark.parametrize(
    "sums, size, code, state, seen",
    [
        ([RIGHT, RIGHT], 2, 0, "ok", "the sums are right on both"),
        ([OWN, OWN], 2, 0, "failure", "the sums are wrong: [[0.0, 1.0, 99999.0], "),
        ([RIGHT, OWN], 2, 0, "failure", "the sums are wrong: "),
        ([OWN, OWN], 1, 0, "failure", "each rank runs separately"),
        ([RIGHT], 2, 0, "failure", "with 2 of 2 ranks started, in the all-reduce"),
        ([RIGHT, RIGHT], 2, 1, "failure", "ended with exit code 1, "),
    ],
)
def test_two_ranks_must_both_have_the_right_sums(sums, size, code, state, seen, monkeypatch):
    told = [{"process": rank, "stage": "joined", "size": size} for rank in (0, 1)]
    told += [{"process": rank, "stage": "summed", "sums": own} for rank, own in enumerate(sums)]
    run = ProgramOutput(code, "\n".join(map(json.dumps, told)), "")
    monkeypatch.setattr(allreduce, "ask", lambda *_, **variables: {"ranks": run})
    answer = allreduce.allreduce(with_mpi(monkeypatch), 100)
    assert answer.state == state and seen in answer.seen
