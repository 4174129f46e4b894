"""labs/one_device.py compared with a plain loop: each technique gives the expected losses."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from torch.nn import functional as F  # noqa: E402

from hvdlab.data import Batches, DataError, Dataset  # noqa: E402
from hvdlab.torch.lab_networks import ConvNet, ResidualMLP  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "labs" / "one_device.py"
STEPS, BATCH, IMAGE = 20, 30, 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # as the script
ROUNDING = 1e-4 if DEVICE == "cuda" else 0  # a GPU may add in another order in each run


@pytest.fixture
def script(monkeypatch):
    """Return the script as a module, on 310 random images whose brightness depends on their class."""
    spec = importlib.util.spec_from_file_location("one_device", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    random = np.random.default_rng(0)
    labels = random.integers(10, size=310).astype(np.uint8)  # 10 are left over in each epoch
    images = random.integers(100, size=(310, 28, 28, 1)) + 15 * labels[:, None, None, None]
    data = Dataset(images.astype(np.uint8), labels, images, labels, (), Path(), True)
    monkeypatch.setattr(module, "load_fashion_mnist", lambda: data)
    return module


def trained(script, network, *options):
    small = ["--num-layers", 2, "--hidden-size", 8, "--image-size", IMAGE, "--batch-size", BATCH]
    arguments = ["--network", network, *small, "--steps", STEPS, "--lr", "0.01", *options]
    return script.train(script.parse_args([str(a) for a in arguments]), report=lambda line: None)


def plain(script, network):
    """Return the losses of a minimal training loop."""
    torch.manual_seed(1)
    model = {"mlp": ResidualMLP, "conv": ConvNet}[network](2, 8, IMAGE).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    data = script.load_fashion_mnist()
    batches, losses = Batches(data.train_images, data.train_labels, BATCH, seed=1), []
    while len(losses) < STEPS:
        for x, y in list(batches.epoch(len(losses) // 10))[:10]:
            x, y = torch.tensor(x, device=DEVICE), torch.tensor(y, device=DEVICE)
            x = F.interpolate(x.permute(0, 3, 1, 2) / 127.5 - 1, (IMAGE, IMAGE), mode="bilinear")
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses[:STEPS]


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_losses_equal_those_of_a_plain_loop(script, network):
    serial = np.array(plain(script, network))
    assert serial[-1] < serial[0] - 0.3  # it learns
    for options, largest in (
        ([], ROUNDING),
        (["--checkpointing"], ROUNDING),
        (["--precision", "tf32"], 0.1 if DEVICE == "cuda" else 0),
        (["--accumulate", 4], 1e-4),  # 8, 8, 7 and 7 images
        (["--accumulate", 3, "--checkpointing"], 1e-4),
        (["--precision", "bf16"], 0.1),
        (["--precision", "bf16", "--checkpointing"], 0.1),
        (["--precision", "fp16"], 0.1),
        (["--precision", "fp16", "--accumulate", 2, "--checkpointing"], 0.1),
    ):
        losses = np.array(trained(script, network, *options)["losses"])
        assert abs(losses - serial).max() <= largest, options
    exact = trained(script, network, "--precision", "bf16")["losses"]
    again = trained(script, network, "--precision", "bf16", "--checkpointing")["losses"]
    assert exact == pytest.approx(again, abs=30 * ROUNDING, rel=0)
    assert max(abs(np.array(exact) - serial)) > 0  # the precision had an effect


def test_checkpointing_and_micro_batches_need_less_memory(script):
    large = ["--num-layers", 8, "--batch-size", 256, "--hidden-size", 16]
    took = {
        name: trained(script, "mlp", *large, *options)
        for name, options in {
            "plain": [],
            "again": ["--checkpointing"],
            "micro-batches": ["--accumulate", 4],
            "bf16": ["--precision", "bf16"],
        }.items()
    }
    activations = 10 * 8 * 16 * 256 * 4
    assert took["plain"]["peak_bytes"] > activations
    assert took["again"]["peak_bytes"] < took["plain"]["peak_bytes"] - activations / 2
    assert took["micro-batches"]["peak_bytes"] < took["plain"]["peak_bytes"] - activations / 2
    assert took["bf16"]["peak_bytes"] < took["plain"]["peak_bytes"] - activations / 4
    count = sum(p.numel() for p in ResidualMLP(8, 16, IMAGE).parameters())
    tensors = len(list(ResidualMLP(8, 16, IMAGE).parameters()))
    for one in took.values():
        assert one["held"] == {
            "parameters": 4 * count,
            "gradients": 0,
            "optimizer": 8 * count + 4 * tensors,
        }


def test_the_loss_scale_adapts_only_in_fp16(script):
    assert set(trained(script, "mlp")["scales"]) == {1.0}
    assert set(trained(script, "mlp", "--precision", "fp16", "--no-scaling")["scales"]) == {1.0}
    scales = trained(script, "mlp", "--precision", "fp16", "--loss-weight", "1e6")["scales"]
    # The scale is halved at each overflow.
    assert scales[0] == 32768 and scales == sorted(scales, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--accumulate", "5", "--batch-size", "4"], "--accumulate: expected at most .* 4, got 5"),
        (["--network", "conv", "--image-size", "8"], "--image-size: expected at least 16"),
        (["--steps", "3"], "--steps: expected more than 3, got 3"),
        (["--num-layers", "0"], "--num-layers: expected 1 or more, got 0"),
        (["--lr", "-1"], "--lr: expected a number above 0, got -1"),
        (["--loss-weight", "nan"], "--loss-weight: expected a number above 0, got nan"),
        (["--precision", "int8"], "--precision: invalid choice: 'int8'"),
        (["--batch-size", "some"], "--batch-size: expected 1 or more, got some"),
    ],
)
def test_reports_a_bad_argument_in_one_sentence(script, arguments, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        script.parse_args(arguments)
    assert stopped.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.search(says, last)


def test_refuses_a_batch_larger_than_the_data(script):
    with pytest.raises(DataError, match="--batch-size: expected at most 310.* got 311"):
        trained(script, "mlp", "--batch-size", 311)


@pytest.mark.data
def test_runs_as_a_script(tmp_path):
    small = ["--image-size", "16", "--hidden-size", "4", "--num-layers", "2", "--steps", "10"]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--network", "conv", "--checkpointing", *small],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step   10  loss" in done.stdout and "a step needs" in done.stdout


def test_reports_missing_data(script, monkeypatch):
    def missing():
        raise DataError("No fashion_mnist data in /nowhere")

    monkeypatch.setattr(script, "load_fashion_mnist", missing)
    monkeypatch.setattr(sys, "argv", ["one_device.py"])
    with pytest.raises(SystemExit, match="one_device.py: No fashion_mnist data in /nowhere"):
        script.main()
