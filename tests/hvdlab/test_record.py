"""The record of a run: its folder and file names. Readers never see an incomplete file."""

import json
import time

import numpy as np
import pytest

from hvdlab import launch, record
from hvdlab.record import RunRecord, launched_rank

LAUNCHER_VARIABLES = (
    "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE HOROVOD_RANK HOROVOD_SIZE "
    "RANK WORLD_SIZE SLURM_PROCID SLURM_NTASKS"
).split()


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for variable in LAUNCHER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, (2, 3)),
        ({"HOROVOD_RANK": "4", "HOROVOD_SIZE": "6"}, (4, 6)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, (3, 4)),
        ({"RANK": "2", "WORLD_SIZE": "8"}, (2, 8)),
        # In a Slurm job with mpirun, mpirun has started this process, not srun.
        (
            {
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
            },
            (1, 2),
        ),
    ],
)
def test_rank_comes_from_the_launcher(variables, expected, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_rank() == expected


LATE_RANK = """
import time
from hvdlab.record import RunRecord, launched_rank

time.sleep(1.1 * launched_rank()[0])  # in another second than the rank before
print(RunRecord().folder)
"""


@pytest.mark.mpi
def test_ranks_that_start_in_different_seconds_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HVDLAB_RUN_DIR", raising=False)
    (tmp_path / "late.py").write_text(LATE_RANK)
    began = int(time.time())
    launch.run("late.py", ranks=3, timeout=60, show=False)
    [run] = (tmp_path / "runs").iterdir()
    assert {rank.name for rank in run.iterdir()} == {"rank-0", "rank-1", "rank-2"}
    named = time.mktime(time.strptime(run.name, "%Y%m%d-%H%M%S"))
    assert began - 1 <= named <= time.time()  # the kernel reports its boot time in whole seconds


def test_a_later_run_of_the_same_parent_has_its_own_folder(tmp_path, monkeypatch):
    """A job script may start several runs, and Slurm's variables name the ranks of the job in each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HVDLAB_RUN_DIR", raising=False)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    begun = record.launch_time()
    assert begun < time.time() and begun == record.launch_time()
    first = RunRecord().folder
    assert first.parent.name == time.strftime("%Y%m%d-%H%M%S", time.localtime(begun))
    monkeypatch.setattr(record, "launch_time", lambda: begun)
    assert RunRecord().folder != first


def test_an_epoch_adds_a_file_and_a_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HVDLAB_RUN_DIR", str(tmp_path))
    record = RunRecord(rank=3)
    for epoch in range(2):
        record.write(epoch, lambda file, e=epoch: np.savez(file, x=np.full(2, e)), loss=0.5)
    assert sorted(p.name for p in (tmp_path / "rank-3").iterdir()) == [
        "epoch-000.npz",
        "epoch-001.npz",
        "record.jsonl",
    ]
    assert np.load(tmp_path / "rank-3" / "epoch-001.npz")["x"].tolist() == [1, 1]
    lines = [
        json.loads(line) for line in (tmp_path / "rank-3/record.jsonl").read_text().split("\n")[:-1]
    ]
    assert [line["epoch"] for line in lines] == [0, 1]
    assert lines[0]["loss"] == 0.5 and lines[0]["seconds"] <= lines[1]["seconds"]


def test_a_weights_file_gets_its_name_when_it_is_complete(tmp_path):
    record = RunRecord(tmp_path)

    def interrupted(file):
        file.write(b"half of it")
        assert not (tmp_path / "rank-0" / "epoch-000.npz").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record.write(0, interrupted)
    assert not (tmp_path / "rank-0" / "epoch-000.npz").exists()
