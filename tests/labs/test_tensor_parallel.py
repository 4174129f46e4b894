"""`tensor_parallel.py` compared with training on one rank, and with formulas for memory and bytes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hvdlab.launch import environment, mpirun_command
from hvdlab.torch.model_parallel.analytic_costs import split_costs

SCRIPT = Path(__file__).parents[2] / "labs" / "tensor_parallel.py"
MODES = ["by-hand", "dtensor", "sequence", "grid", "axonn"]
SMALL = {"num_layers": 2, "hidden_size": 64, "batch_size": 32}


def start(ranks, *arguments, launcher=None, **variables):
    """Return (exit code, output) of the script on so many ranks."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    done = subprocess.run(
        [*(launcher or mpirun_command(ranks, SCRIPT)), *options, *map(str, arguments)],
        env={**os.environ, **environment(ranks), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout


def trained(ranks, folder, *arguments, launcher=None):
    """Return the measurements of each mode: {mode: measurements}."""
    file = folder / "found.json"
    code, output = start(ranks, *arguments, "--compare", "--save", file, launcher=launcher)
    assert code == 0, output[-3000:]
    return {found["mode"]: found for found in json.loads(file.read_text())}


@pytest.fixture(scope="module")
def on_four(tmp_path_factory):
    return trained(4, tmp_path_factory.mktemp("four"), "--modes", *MODES)


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.usefixtures("real_fashion_mnist")
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_equals_training_on_one_rank(mode, on_four):
    found = on_four[mode]
    assert len(found["losses"]) == 20
    assert found["losses"][-1] < found["losses"][0]
    assert found["loss_difference"] < 1e-5
    assert found["weight_difference"] < 1e-5


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.parametrize("mode", MODES)
def test_memory_and_bytes_follow_the_formulas(mode, on_four):
    found, costs = on_four[mode], split_costs(mode, 4, **SMALL)
    assert found["memory_bytes"] == costs.memory
    # Gloo adds a header to each message, up to 2 kB per collective on 4 ranks.
    calls = sum(int(part.split()[0]) for part in found["collectives"].split(", "))
    assert costs.sent <= found["sent_bytes"] <= 1.01 * costs.sent + 2500 * calls


@pytest.mark.mpi
@pytest.mark.data
def test_counts_the_collectives(on_four):
    blocks = SMALL["num_layers"]
    assert on_four["by-hand"]["collectives"] == f"{2 * blocks} all-reduce"
    assert on_four["dtensor"]["collectives"] == f"{2 * blocks} all-reduce"
    assert "reduce-scatter" in on_four["sequence"]["collectives"]
    # on a grid: two per block in each direction, four per norm, and the head
    assert on_four["grid"]["collectives"] == f"{4 * blocks + 4 * (blocks + 1) + 1} all-reduce"


@pytest.mark.mpi
@pytest.mark.data
@pytest.mark.thorough
def test_axonn_with_depth_equals_training_on_one_rank(tmp_path):
    found = trained(4, tmp_path, "--modes", "axonn", "--columns", 1, "--depth", 2)["axonn"]
    assert found["loss_difference"] < 1e-5
    assert found["weight_difference"] < 1e-5
    assert found["memory_bytes"] == split_costs("axonn", 4, 1, 2, **SMALL).memory


@pytest.mark.data
@pytest.mark.thorough
def test_runs_as_a_single_process_and_under_torchrun(tmp_path):
    alone = trained(1, tmp_path, "--modes", "serial", launcher=[sys.executable, SCRIPT])["serial"]
    assert alone["loss_difference"] == 0
    assert alone["memory_bytes"] == split_costs("serial", 1, **SMALL).memory
    torchrun = [
        Path(sys.executable).with_name("torchrun"),
        "--standalone",
        "--nproc-per-node=2",
        SCRIPT,
    ]
    found = trained(2, tmp_path, "--modes", "by-hand", launcher=torchrun)["by-hand"]
    assert found["losses"] == pytest.approx(alone["losses"], abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--modes", "serial"], "serial is for one rank, and 2 were started"),
        pytest.param(
            ["--modes", "grid", "--columns", 3], "a multiple of 3 ranks", marks=pytest.mark.thorough
        ),
        pytest.param(
            ["--hidden-size", 63],
            "expected a multiple of 2 ranks, got 63",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ["--modes", "sequence", "--batch-size", 31],
            "a multiple of 2 with sequence, got 31",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ["--batch-size", 15_001],
            "--batch-size: expected at most 15000",
            marks=pytest.mark.thorough,
        ),
        pytest.param(["--steps", 3], "--steps: expected 4 to 1875", marks=pytest.mark.thorough),
    ],
)
def test_refuses_an_impossible_split_in_one_sentence(arguments, says):
    rank = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    rank |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }  # it ends before it reads the other variables
    code, output = start(1, *arguments, launcher=[sys.executable, SCRIPT], **rank)
    assert code == 1
    assert output.count("\n") == 1 and says in output


def test_reports_missing_data_in_one_sentence(tmp_path):
    missing = {"HVDLAB_DATA": tmp_path / "nowhere"}
    code, output = start(1, launcher=[sys.executable, SCRIPT], **missing)
    assert code == 1
    assert output.startswith("tensor_parallel.py: No fashion_mnist data in ")
    assert output.count("\n") == 1


class Summed(Exception):
    """Raised where a collective would sum up a tensor, with its device."""


def test_losses_of_axonns_depth_are_summed_on_the_device_of_the_images(monkeypatch):
    spec = importlib.util.spec_from_file_location("tensor_parallel", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def all_reduce(tensor, group):
        raise Summed(tensor.device, group)

    monkeypatch.setattr(script.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(script, "part", lambda tensor, dim, group: tensor)
    monkeypatch.setattr(script, "sum_over_depth", lambda network, depth: None)
    # NCCL accepts no CPU tensor. Every machine has the device `meta`, which stands for a GPU here.
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: 1.0)
    network = torch.nn.Linear(5, 10, device="meta")
    images, labels = torch.ones(3, 5, device="meta"), torch.zeros(3, device="meta").long()
    with pytest.raises(Summed) as summed:
        script.train(network, 4 * [(images, labels)], SimpleNamespace(lr=0.1), depth="depth")
    assert summed.value.args == (torch.device("meta"), "depth")
