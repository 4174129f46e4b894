"""The DDP script equals the serial script on the union of the batches, and lab 5's Horovod script."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdlab import launch
from hvdlab.course.rank_report import curve, rank_report
from hvdlab.data import DataError
from hvdlab.exercises import lab05_script_edits

pytest.importorskip("torch")

LABS = Path(__file__).parents[2] / "labs"
DDP = LABS / "fashion_mnist_ddp.py"
FEW = ["--epochs", "2", "--images", "1024", "--heldout", "501"]

pytestmark = [
    pytest.mark.data,
    pytest.mark.mpi,
    pytest.mark.usefixtures("real_fashion_mnist"),
]


def train(script, folder, *arguments, ranks=2):
    """Run a script, and return the folder of its record."""
    launch.run(
        script, *FEW, *arguments, ranks=ranks, show=False, timeout=200,
        HVDLAB_RUN_DIR=str(folder), OMP_NUM_THREADS="1",
    )  # fmt: skip
    return folder


def weights(folder, rank=0):
    with np.load(folder / f"rank-{rank}" / "epoch-001.npz") as file:
        return np.concatenate([file[n].ravel() for n in file.files if n != "examples_read"])


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    return train(DDP, tmp_path_factory.mktemp("ddp"), "--batch-size", "32")


def test_one_rank_trains_on_the_whole_batch(on_two_ranks, tmp_path):
    alone = train(DDP, tmp_path, "--batch-size", "64", "--lr", "0.04", ranks=1)
    lines, theirs = curve(on_two_ranks), curve(alone)
    assert np.abs(lines["loss"] - theirs["loss"]).max() < 1e-4
    assert np.abs(weights(on_two_ranks) - weights(alone)).max() < 1e-4
    assert (lines["accuracy"] - theirs["accuracy"]).abs().max() <= 1 / 501
    assert lines["accuracy"].iloc[-1] > 0.3  # chance is 0.1


def test_all_ranks_have_the_same_weights(on_two_ranks):
    report = rank_report(on_two_ranks)
    assert report["weights"].nunique() == 1
    assert report["loss"].nunique() == report["accuracy"].nunique() == 1
    read = [np.load(on_two_ranks / f"rank-{r}" / "epoch-000.npz")["examples_read"] for r in (0, 1)]
    assert sorted(np.concatenate(read)) == list(range(1024))


@pytest.mark.thorough
def test_equals_the_serial_script_on_the_union_of_the_batches(on_two_ranks, tmp_path):
    serial = LABS / "fashion_mnist_torch.py"
    alone = train(serial, tmp_path, "--batch-size", "64", "--lr", "0.04", ranks=1)
    assert np.abs(curve(on_two_ranks)["loss"] - curve(alone)["loss"]).max() < 1e-4
    assert np.abs(weights(on_two_ranks) - weights(alone)).max() < 1e-4


@pytest.mark.thorough
def test_equals_the_horovod_script_of_lab_4(on_two_ranks, tmp_path):
    pytest.importorskip("horovod")
    script = tmp_path / "lab_4.py"  # not horovod.py, which the script would import as Horovod
    script.write_text(lab05_script_edits.after("resume", "torch"))
    theirs = train(script, tmp_path / "run", "--batch-size", "32")
    assert np.abs(curve(on_two_ranks)["loss"] - curve(theirs)["loss"]).max() < 1e-4
    assert np.abs(weights(on_two_ranks) - weights(theirs)).max() < 1e-4


@pytest.mark.thorough
def test_resumes_from_a_checkpoint(on_two_ranks, tmp_path):
    kept = ["--batch-size", "32", "--checkpoint", str(tmp_path / "kept")]
    train(DDP, tmp_path / "first", *kept, "--epochs", "1")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["epoch-000.pt"]
    train(DDP, tmp_path / "then", *kept)
    assert np.abs(weights(on_two_ranks) - weights(tmp_path / "then")).max() < 1e-5


@pytest.mark.thorough
def test_refuses_checkpoints_that_only_one_rank_sees(tmp_path):
    kept = ["--batch-size", "32", "--epochs", "1"]
    train(DDP, tmp_path / "run", *kept, "--checkpoint", str(tmp_path / "0"))
    script = tmp_path / "own_disks.py"  # each rank has its own checkpoint folder
    script.write_text(
        "import os, runpy, sys\n"
        f"sys.argv = [{str(DDP)!r}, *{FEW!r}, '--checkpoint', "
        f"{str(tmp_path)!r} + '/' + os.environ['OMPI_COMM_WORLD_RANK']]\n"
        f"runpy.run_path({str(DDP)!r}, run_name='__main__')\n"
    )
    with pytest.raises(launch.LaunchError, match="a folder that all ranks share, but one rank"):
        launch.run(script, ranks=2, show=False, timeout=100)


@pytest.mark.thorough
def test_runs_under_torchrun_and_as_a_single_process(tmp_path):
    # One held-out image: rank 1 has none.
    for words in (["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], []):
        done = subprocess.run(
            [sys.executable, *words, DDP, "--epochs", "1", "--images", "256", "--heldout", "1"],
            cwd=tmp_path, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("epoch 0") == 1


@pytest.fixture
def script(monkeypatch):
    """Return the script as a module whose argv[0] is its file name."""
    spec = importlib.util.spec_from_file_location("fashion_mnist_ddp", DDP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["fashion_mnist_ddp.py"])
    return module


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("--momentum -1", "argument --momentum: expected 0 to 1, got -1"),
        ("--momentum nan", "argument --momentum: expected 0 to 1, got nan"),
        ("--seed -1", "argument --seed: expected 0 or more, got -1"),
        ("--seed 2.5", "argument --seed: expected 0 or more, got 2.5"),
    ],
)
def test_reports_a_bad_argument_in_one_sentence(script, typed, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fashion_mnist_ddp.py", *typed.split()])
    with pytest.raises(SystemExit) as stopped:
        script.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(f"{says}\n")


def test_reports_missing_data_before_the_ranks_connect(script, monkeypatch):
    def missing():
        raise DataError("No fashion_mnist data in /nowhere")

    monkeypatch.setattr(script, "load_fashion_mnist", missing)
    monkeypatch.setattr(script, "rendezvous", lambda: pytest.fail("the ranks meet"))
    with pytest.raises(
        SystemExit, match="^fashion_mnist_ddp.py: No fashion_mnist data in /nowhere"
    ):
        script.main()
