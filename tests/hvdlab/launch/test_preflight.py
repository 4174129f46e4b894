"""What `hvdlab run` refuses, each in one sentence, before anything is started."""

import argparse
import os
import sys
from types import SimpleNamespace

import pytest

from hvdlab.launch import command, preflight
from hvdlab.system import hardware, slurm_job


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return path


def refused(capsys, *arguments):
    """The one sentence with which a run is refused."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.main(parser.parse_args([str(word) for word in arguments])) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    return error.removeprefix("hvdlab run: ").rstrip("\n")


def programs(folder, **texts):
    """Small shell scripts as programs."""
    for name, text in texts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


def test_what_cannot_be_understood_is_refused(capsys, script, tmp_path):
    for option, value, expected in (
        ("-np", "0", "1 or more"),
        ("-np", "two", "1 or more"),
        ("--timeout", "0", "a number above 0"),
        ("--timeout", "inf", "a number above 0"),
    ):
        with pytest.raises(SystemExit) as ended:
            refused(capsys, "-np", 2, option, value, script)
        last = capsys.readouterr().err.splitlines()[-1]
        assert ended.value.code == 2
        assert last.endswith(f"error: argument {option}: expected {expected}, got {value}")
    assert refused(capsys, "-np", 2, tmp_path / "no.py").endswith(
        "no.py is not a file: name the Python script for the ranks to run."
    )
    assert refused(capsys, "-np", 2, "-H", "host1:x", script).startswith("-H: expected HOST:SLOTS")
    assert refused(capsys, "-np", 5, "-H", "localhost:4", script) == (
        "5 ranks, but the hosts have room for 4: start no more, or ask for more room."
    )


def test_more_ranks_than_gpus_are_started_and_see_all_gpus(capsys, script, fake_nvidia_smi):
    fake_nvidia_smi("GPU 0: A (UUID: GPU-a)", "GPU 1: B (UUID: GPU-b)")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.main(parser.parse_args(["-np", "3", "--dry-run", str(script)])) == 0
    line = capsys.readouterr().out
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID " in line and "CUDA_VISIBLE_DEVICES" not in line


@pytest.mark.parametrize(
    "visible, capability", [(None, (8, 0)), ("1", (8, 0)), ("-1", None), ("", None)]
)
def test_a_hidden_gpu_can_compute_nothing(visible, capability, tmp_path, monkeypatch):
    answers = (
        "case $1 in --list-gpus) echo 'GPU 0: A'; echo 'GPU 1: B';; *) echo 9.0; echo 8.0;; esac"
    )
    programs(tmp_path, nvidia_smi=answers)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.gpu_compute_capability() == capability


def test_a_machine_without_gpus_has_none(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert hardware.gpus() == 0


def test_another_mpi_than_horovods_is_refused(capsys, script, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    programs(tmp_path, mpirun="echo 'HYDRA build details:'")
    monkeypatch.setattr(preflight, "horovod_mpi", lambda: "Open MPI")
    assert refused(capsys, "-np", 2, script).startswith(
        f"Horovod was built for Open MPI, but {tmp_path}/mpirun belongs to MPICH, so every rank would "
    )
    monkeypatch.setattr(preflight, "horovod_mpi", lambda: "none")
    assert refused(capsys, "-np", 2, script).startswith("Horovod was built without MPI, so mpirun")
    (tmp_path / "mpirun").unlink()
    monkeypatch.setenv("PATH", "/nowhere")
    assert refused(capsys, "-np", 2, script).startswith("there is no mpirun here: `hvdlab doctor`")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("echo 'mpirun: libprrte.so.3: cannot open' >&2; exit 127", "libprrte.so.3: cannot open"),
        ("exit 3", "(exit code 3)"),
        (None, "(Exec format error)"),
    ],
)
def test_an_mpirun_that_fails_is_not_called_unknown(
    text, says, capsys, script, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    programs(tmp_path, mpirun=text)
    if text is None:
        (tmp_path / "mpirun").write_bytes(b"\x7fELF of another processor")
    said = refused(capsys, "-np", 2, script)
    assert said.startswith(f"{tmp_path}/mpirun does not work (") and says in said
    assert "unknown" not in said


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            "srun: error: pmi/pmix: can not load PMIx library",
            "train.py uses Horovod, whose ranks srun can only start if Slurm has PMIx, but here "
            "`srun --mpi=pmix -n 1 true` fails (can not load PMIx library).",
        ),
        (
            "srun: error: Unable to allocate resources: Invalid account",
            "srun cannot start a rank here: `srun --mpi=pmix -n 1 true` fails (srun: error: Unable to "
            "allocate resources: Invalid account).",
        ),
    ],
)
def test_slurm_lacks_pmix_only_if_srun_says_so(error, says, capsys, script, tmp_path, monkeypatch):
    script.write_text("import horovod.torch\n")
    programs(tmp_path, srun=f"echo '{error}' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert says in refused(capsys, "-np", 2, "--launcher", "srun", script)


def test_nodes_that_mpirun_cannot_reach_are_named_before_it_starts(
    capsys, script, tmp_path, monkeypatch
):
    """As in a container, on one of two nodes."""
    bare = tmp_path / "bin"
    bare.mkdir()
    programs(bare, mpirun="echo 'mpirun (Open MPI) 5.0.11'")
    monkeypatch.setattr(sys, "executable", str(bare / "python"))
    monkeypatch.setenv("PATH", str(bare))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[01-02]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x2)")
    monkeypatch.setattr(preflight, "horovod_mpi", lambda: "Open MPI")
    said = refused(capsys, "-np", 2, script)
    assert said.startswith(
        "the Slurm allocation has 2 nodes (gpu01, gpu02), and mpirun cannot reach"
    )
    assert "neither srun nor ssh" in said
    programs(bare, ssh="echo 'Host key verification failed.' >&2; exit 255")
    assert "gpu01 cannot be reached (Host key verification failed.)" in refused(
        capsys, "-np", 2, script
    )
    programs(bare, ssh="exit 0")
    preflight.nodes_must_be_reachable(str(script))
    programs(bare, srun="exit 1", ssh="exit 1")  # mpirun uses srun where there is one
    preflight.nodes_must_be_reachable(str(script))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node7", ["node7"]),
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("a[9-11]-ib,b[1]", ["a9-ib", "a10-ib", "a11-ib", "b1"]),
        ("", []),
    ],
)
def test_the_nodes_of_an_allocation_are_named(text, names, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NODELIST", text)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert slurm_job.nodes() == []
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert slurm_job.nodes() == names


@pytest.mark.parametrize(
    ("needs", "kind"),
    [
        (b"libmpi.so.40", "Open MPI"),
        (b"libmpi.so.12", "MPICH"),
        (b"libmpich.so.0", "MPICH"),
        (b"libc.so.6", "none"),
    ],
)
def test_the_mpi_of_horovod_is_read_from_its_libraries(needs, kind, tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/mpi_lib_v2.so").write_bytes(b"\x7fELF\0" + needs + b"\0libm.so.6\0")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(preflight, "find_spec", lambda name: spec)
    assert preflight.horovod_mpi() == kind
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    assert preflight.horovod_mpi() is None


def test_this_horovod_fits_this_mpirun():
    pytest.importorskip("horovod")
    preflight.mpirun_must_fit()
    assert preflight.horovod_mpi() == "Open MPI"
