"""The doctor's checks one by one, where no set-up has to be made for them."""

import argparse
import ast
import json
from pathlib import Path

import pytest

from hvdlab import doctor
from hvdlab.doctor_checks import Said, frameworks, launchers, machine, surroundings

ROOT = Path(__file__).parents[2]


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

    row = doctor.finding("x", "X", check, {})
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


@pytest.mark.parametrize("value, state", [("1", "ok"), ("0", "warning"), ("many", "warning")])
def test_threads_that_are_no_number_or_fit(value, state, monkeypatch):
    for name in surroundings.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", value)
    assert surroundings.threads({}).state == state


def test_an_allocation_of_one_task_is_a_warning(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert surroundings.slurm({}).state == "warning"
    monkeypatch.setenv("SLURM_NTASKS", "4")
    answer = surroundings.slurm({})
    assert answer.state == "ok" and answer.seen.startswith("job 7 on 1 node, ")
    assert answer.seen.endswith(": 4 tasks")


GPU = "NVIDIA A100, 40960 MiB, 550.54, 8.0\n"


@pytest.mark.parametrize(
    "torch, state, seen, ranks",
    [
        ({"gpus": 2, "cuda": "12.4", "horovod": {"nccl": True}}, "ok", "with NCCL", 2),
        ({"gpus": 2, "cuda": "12.4", "horovod": {"nccl": False}}, "warning", "without NCCL", None),
        ({"gpus": 0, "cuda": "", "horovod": {"nccl": False}}, "warning", "the CPU only", None),
    ],
)
def test_gpus_are_of_use_when_torch_and_horovod_can(torch, state, seen, ranks, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    said = {
        "nvidia-smi": Said(0, 2 * GPU, ""),
        "torch": Said(0, json.dumps(torch), ""),
        "tensorflow": Said(1, "", "no such module"),
    }
    answer = machine.gpus(said)
    assert answer.state == state and seen in answer.seen and answer.seen.startswith("2: NVIDIA")
    assert machine.usable_gpus(said) == (ranks or 0)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_a_limit_must_be_seconds(text, capsys):
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--timeout", text])
    assert f"expected seconds, a number above 0, got '{text}'" in capsys.readouterr().err


def test_an_older_python_can_read_the_doctor():
    """It must be able to say that the Python is too old."""
    files = [ROOT / "labs/hvdlab/doctor.py", *(ROOT / "labs/hvdlab/doctor_checks").glob("*.py")]
    for file in files:
        ast.parse(file.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("name", surroundings.CONTROLLERS)
def test_a_controller_that_mpirun_does_not_serve_is_told(name, monkeypatch):
    for other in surroundings.CONTROLLERS:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    monkeypatch.setenv(name, "mpi")
    assert surroundings.variables({}).state == "ok"
    monkeypatch.setenv(name, "gloo")
    answer = surroundings.variables({})
    assert answer.state == "warning" and answer.mend == f"unset {name}"


def test_a_framework_whose_import_is_slow_is_not_installed_again():
    late = Said(None, "", "", "did not end within 5 s", late=True)
    there = Said(0, '{"version": "2.21.0"}', "")
    answer = frameworks.frameworks({"torch": late, "tensorflow": there})
    assert answer.state == "warning" and "did not end within 5 s" in answer.seen
    assert answer.mend == "hvdlab doctor --timeout 300"
    missing = late._replace(why="no such module", late=False)
    assert "pip install" in frameworks.frameworks({"torch": missing, "tensorflow": there}).mend
