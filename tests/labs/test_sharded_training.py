"""Every mode has the losses of the serial run, and the memory and the traffic of ZeRO's formulas."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hvdlab import launch

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "labs" / "sharded_training.py"
# More blocks than ranks, so that PyTorch's ZeRO-1, which assigns whole tensors, shards almost evenly.
SMALL = ["--num-layers", "6", "--hidden-size", "96", "--steps", "20"]
TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}  # only MPI's bytes over TCP are counted

pytestmark = [
    pytest.mark.data,
    pytest.mark.mpi,
    pytest.mark.usefixtures("real_fashion_mnist"),
]


@cache
def train(mode, ranks, *more):
    output = launch.run(
        SCRIPT, mode, *SMALL, *more, ranks=ranks, show=False, timeout=200, **TCP,
        OMP_NUM_THREADS="1",
    )  # fmt: skip
    return json.loads(next(line for line in output.splitlines() if line.startswith('{"mode"')))


def check(mode, ranks, bytes_a_parameter, units, tolerance=0.03, buffer=0):
    """Check losses, memory (bytes per parameter) and traffic (in halves of an all-reduce)."""
    report, serial = train(mode, ranks), train("serial", 1)
    psi = report["parameters"]
    assert report["ranks"] == ranks
    assert len(report["losses"]) == 20
    assert np.abs(np.subtract(report["losses"], serial["losses"])).max() < 2e-6
    # The network learns, so that equal losses mean something.
    assert report["losses"][-1] < 0.7 * report["losses"][0]
    expected = bytes_a_parameter * psi + buffer
    assert report["memory_bytes"] == pytest.approx(expected, rel=tolerance)
    assert report["sent_bytes"] == pytest.approx(units * (ranks - 1) / ranks * 4 * psi, rel=0.03)
    assert report["step_seconds"] > 0


def test_number_of_parameters():
    # stem 784 x 96 + 96; six blocks of 8 x 96^2 + 7 x 96; norm; head 96 x 10 + 10
    parameters = 785 * 96 + 6 * (8 * 96**2 + 7 * 96) + 2 * 96 + 97 * 10
    assert train("serial", 1)["parameters"] == parameters
    assert train("serial", 1)["memory_bytes"] == pytest.approx(16 * parameters, rel=0.001)
    assert train("serial", 1)["sent_bytes"] == 0


@pytest.mark.thorough
def test_ddp():
    check("ddp", 2, 16, 2)


@pytest.mark.thorough
def test_zero1():
    # ZeRO-1 assigns whole tensors, so it is not exactly half.
    check("zero1", 2, 4 + 4 + 8 / 2, 3, tolerance=0.1)


def test_fsdp3():
    check("fsdp3", 2, (4 + 4 + 8) / 2, 4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "ranks", "bytes_a_parameter", "units"),
    [
        ("hand", 2, 16, 2),
        ("horovod", 2, 16, 2),
        ("fsdp2", 2, 16 / 2, 3),  # the whole weights are freed after the backward pass
        # DeepSpeed has an additional float32 copy of the weights that a rank updates.
        ("deepspeed1", 2, 4 + (4 + 4 + 8) / 2, 3),
        ("deepspeed2", 2, 4 + (4 + 4 + 8) / 2, 3),
        ("deepspeed3", 2, (4 + 4 + 4 + 8) / 2, 4),
        ("hand", 4, 16, 2),
        ("fsdp3", 4, 16 / 4, 4),
        ("deepspeed2", 4, 4 + (4 + 4 + 8) / 4, 3),
    ],
)
def test_losses_memory_and_traffic_of_the_other_modes(mode, ranks, bytes_a_parameter, units):
    if mode == "horovod":
        pytest.importorskip("horovod")
    if mode.startswith("deepspeed"):
        pytest.importorskip("deepspeed")
    buffer = 4 * 2**18 if mode == "deepspeed3" else 0  # its reduce_bucket_size
    check(mode, ranks, bytes_a_parameter, units, tolerance=0.1, buffer=buffer)


@pytest.mark.thorough
def test_offloading_has_the_losses_of_the_serial_run():
    pytest.importorskip("deepspeed")
    report, serial = train("deepspeed2-offload", 2), train("serial", 1)
    assert np.abs(np.subtract(report["losses"], serial["losses"])).max() < 2e-6


@pytest.mark.thorough
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_refuses_offloading_without_a_gpu():
    with pytest.raises(launch.LaunchError, match="fsdp3-offload: expected a GPU"):
        launch.run(SCRIPT, "fsdp3-offload", ranks=1, show=False, timeout=100)


@pytest.mark.thorough
def test_stage_3_frees_the_weights_that_stage_2_keeps():
    many = ("--num-layers", "16")
    kept = train("fsdp2", 2, *many)["peak_bytes"]
    freed = train("fsdp3", 2, *many)["peak_bytes"]
    assert freed < 0.8 * kept


def torchrun(mode):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, SCRIPT, mode, *SMALL], capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.mpi
@pytest.mark.thorough
def test_refuses_horovod_under_torchrun():
    done = torchrun("horovod")
    assert done.returncode != 0 and "losses" not in done.stdout
    assert "expected ranks that mpirun started, but Horovod knows of 1 rank" in done.stderr


@pytest.mark.thorough
def test_runs_under_torchrun():
    done = torchrun("fsdp3")
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout.splitlines()[-1])["losses"]
    assert losses == train("fsdp3", 2)["losses"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--steps", "3"], "--steps: expected at least 5, because 3 warm up"),
        (["--steps", "2000"], "--steps, --global-batch: 128064 images are needed, and 60000"),
    ],
)
def test_reports_a_bad_argument_in_one_sentence(arguments, says):
    done = subprocess.run(
        [sys.executable, SCRIPT, "ddp", *arguments], capture_output=True, text=True, timeout=100
    )
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_refuses_a_batch_that_the_ranks_do_not_divide(tmp_path):
    with pytest.raises(launch.LaunchError, match="serial: expected 1 rank, got 2"):
        launch.run(SCRIPT, "serial", *SMALL, ranks=2, show=False, timeout=100)
    with pytest.raises(launch.LaunchError, match="a multiple of the 2 ranks, got 63"):
        launch.run(SCRIPT, "ddp", *SMALL, "--global-batch", 63, ranks=2, show=False, timeout=100)
